"""The coordinator that a simulation runs in its own process."""

import threading
import time
from pathlib import Path

import pytest

from pubswap_protocol.errors import Unauthenticated
from pubswap_simulation.coordinator import Coordinator, coordinator_settings
from pubswap_simulation.shared_policy import Stopped


def test_requests_reach_the_real_application_and_no_socket(tmp_path: Path) -> None:
    """Including authentication and typed errors."""
    with Coordinator(tmp_path / "c") as coordinator:
        with coordinator.operator() as operator:
            operator.check_version()
            assert operator.runs() == []
        with coordinator.client("wrong") as stranger, pytest.raises(Unauthenticated):
            stranger.runs()
    assert (tmp_path / "c" / "pubswap.sqlite").exists()


def test_who_waits_is_sent_away_in_the_end(tmp_path: Path) -> None:
    """And so are later calls, right away."""
    with Coordinator(tmp_path / "c") as coordinator:
        ended: list[float] = []

        async def for_ever() -> None:
            import asyncio

            await asyncio.Event().wait()

        def wait() -> None:
            with pytest.raises(Stopped):
                coordinator.call(for_ever())
            ended.append(time.monotonic())

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.2)
        assert not ended
        coordinator.stop()
        thread.join(10)
        assert ended
        with coordinator.client() as late, pytest.raises(Stopped):
            late.version()


def test_the_environment_of_another_coordinator_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulation uses only its folder, even if the environment configures a real coordinator."""
    for name, value in {
        "DATABASE_URL": "postgresql+psycopg://nobody@nowhere/none",
        "BLOB_URL": "s3://bucket",
        "OPERATOR_TOKEN": "theirs",
        "WORKERS": "4",
    }.items():
        monkeypatch.setenv(f"PUBSWAP_{name}", value)
    settings = coordinator_settings(tmp_path)
    assert settings.sqlalchemy_url == f"sqlite:///{tmp_path}/pubswap.sqlite"
    assert (settings.blob_url, settings.operator_token, settings.workers) == (None, None, 1)
