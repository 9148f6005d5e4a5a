"""What a coordinator makes before it serves, so that no request waits for it."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

import httpx
import pytest

from pubswap_server.app import create_app
from pubswap_server.server import make_routes
from support.coordinator.coordinator import settings_for


@pytest.mark.parametrize("made", [False, True])
def test_the_first_request_reads_no_signatures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    """Once the routes are made; without that it would, of every route that there is."""
    app = create_app(settings_for(tmp_path))
    if made:
        make_routes(app)
    read: list[Any] = []
    signature = inspect.signature

    def counted(of: Any, **options: Any) -> inspect.Signature:
        read.append(of)
        return signature(of, **options)

    monkeypatch.setattr(inspect, "signature", counted)

    async def ask() -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            return (await http.get("/v1/nothing")).status_code

    assert asyncio.run(ask()) == 404
    assert bool(read) is not made
