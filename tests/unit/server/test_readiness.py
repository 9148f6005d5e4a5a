"""Readiness checks rarely, never hangs, and says why; and preparations for the first request."""

import asyncio
import inspect
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from pubswap_server import notifications
from pubswap_server.app import create_app
from pubswap_server.monitoring import readiness
from pubswap_server.monitoring.readiness import Readiness, conductor_turns
from pubswap_server.server import make_routes
from support.coordinator.coordinator import settings_for


def test_a_check_runs_once_a_second_however_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred probes at once run one check, whose result is used for a second."""
    looks = 0

    async def check() -> str | None:
        nonlocal looks
        looks += 1
        return f"look {looks}"

    async def ask() -> None:
        asked = Readiness({"thing": check})
        answers = await asyncio.gather(*(asked.reasons() for _ in range(100)))
        assert answers == [["look 1"]] * 100
        monkeypatch.setattr(readiness, "FRESH_SECONDS", 0.0)
        assert await asked.reasons() == ["look 2"]

    asyncio.run(ask())


def test_a_check_that_hangs_is_told_of_in_time_and_begun_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other checks' reasons are reported too; once it ends, its own result counts."""
    monkeypatch.setattr(readiness, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(readiness, "ANSWER_SECONDS", 0.1)
    begun = 0

    async def ask() -> None:
        over = asyncio.Event()

        async def hangs() -> str | None:
            nonlocal begun
            begun += 1
            await over.wait()
            return None

        async def fails() -> str | None:
            return "the disk is full"

        asked = Readiness({"store": hangs, "disk": fails})
        started = time.monotonic()
        for _ in range(3):
            assert await asked.reasons() == [
                "the store does not answer within 0 s",
                "the disk is full",
            ]
        assert time.monotonic() - started < 20  # it hangs forever
        assert begun == 1
        over.set()
        monkeypatch.setattr(readiness, "ANSWER_SECONDS", 20.0)
        assert await asked.reasons() == ["the disk is full"]

    asyncio.run(ask())


def test_a_conductor_that_takes_no_turn_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for a tick is fine; half a minute beyond it is reported, until the next turn."""
    present = 1000.0
    for module in (readiness, notifications):
        monkeypatch.setattr(module, "steady", lambda: present)

    async def play() -> None:
        nonlocal present
        asked = notifications.ChangeNotifier()
        check = partial(conductor_turns, asked, tick_seconds=5.0)
        present += 34
        assert await check() is None
        present += 2
        assert await check() == ("the conductor has taken no turn for 36 s; restart this process")
        await asked.changed_runs(0.01)
        assert await check() is None

    asyncio.run(play())


@pytest.mark.parametrize("made", [False, True])
def test_the_first_request_reads_no_signatures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    """Not once the routes are prepared; otherwise it would read those of every route."""
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
