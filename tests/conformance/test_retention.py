"""What is kept of what members sent, on every database and store: it does not grow for ever."""

import asyncio
import time
from pathlib import Path

import pytest

from pubswap_protocol import paths
from pubswap_protocol.adapter import encode_adapter
from pubswap_protocol.digests import digest_of
from pubswap_server.admin.progress import Silent
from pubswap_server.admin.verify import verify
from pubswap_server.housekeeping import sweep
from pubswap_server.settings import ServerSettings
from support.coordinator import Federation, begun, serving, settings_for

ROUNDS, KEPT, CLIENTS = 30, 2, 2


@pytest.fixture
def settings(database_url: str, blob_url: str | None, tmp_path: Path) -> ServerSettings:
    """A coordinator of its own, whose orphans go at once."""
    there = {"database_url": database_url, "blob_url": blob_url and f"{blob_url}/{tmp_path.name}"}
    return settings_for(tmp_path / "place").model_copy(
        update={**there, "keep_rounds": KEPT, "orphan_seconds": 0.01}
    )


def one_round(fed: Federation, round_: int) -> int:
    """A round whose members also store an adapter that they do not use; an adapter's size."""
    data = encode_adapter(fed.run.model.layout, fed.adapter(1000 + round_))
    fed.members["a"].put_blob(fed.run.id, data)
    body = fed.responses("b", round_, 1, [1, 2])
    fed.members["b"].submit_responses(fed.run.id, round_, 1, body)
    for name in ("a", "b"):
        fed.submit(name, round_, fed.adapter(2 * round_ + (name == "a")))
    fed.wait_for(round_)
    return len(data)


def test_a_long_run_keeps_global_adapters_and_its_last_rounds_updates(
    settings: ServerSettings,
) -> None:
    """Bytes grow by one adapter a round; what is kept is verified, and what is not is counted."""
    with serving(settings) as server, server.closing:
        fed = begun(server, rounds=ROUNDS, swap={"deadline_seconds": 0.01})
        services = server.app.state.services
        for round_ in range(1, ROUNDS + 1):
            size = one_round(fed, round_)
            if round_ % 10 == 0:
                time.sleep(0.05)
                asyncio.run(sweep(services))
                adapters = [blob for blob in services.blobs.blobs() if blob.size == size]
                assert len(adapters) <= (round_ + 1) + KEPT * CLIENTS
        first, last = (encode_adapter(fed.run.model.layout, fed.adapter(n)) for n in (2, 60))
        with server.http(fed.tokens["b"]) as http:
            path = paths.BLOB.format(run=fed.run.id, digest=digest_of(last))
            assert http.get(path).content == last
            path = paths.BLOB.format(run=fed.run.id, digest=digest_of(first))
            assert http.get(path).json()["code"] == "unknown_blob"
        assert fed.hand_in("b", 1, first).status == "accepted"
    report = verify(settings, Silent())
    assert report.healthy
    assert (report.rounds, report.freed) == (1 + KEPT, ROUNDS - KEPT)
    assert f"{ROUNDS - KEPT} earlier rounds could not be computed again" in report.told()


def test_what_is_lost_of_the_kept_rounds_is_still_a_fault(settings: ServerSettings) -> None:
    """A freed update is not lost; one of the last rounds is."""
    with serving(settings) as server, server.closing:
        fed = begun(server, rounds=5, method="fedavg")
        for round_ in range(1, 6):
            for name in ("a", "b"):
                fed.submit(name, round_, fed.adapter(2 * round_ + (name == "a")))
            fed.wait_for(round_)
        lost = digest_of(encode_adapter(fed.run.model.layout, fed.adapter(10)))
        server.app.state.services.blobs.set_aside(lost)
    report = verify(settings, Silent())
    assert [one.digest for one in report.lost] == [lost]
    assert (report.rounds, report.freed, len(report.unchecked)) == (2, 3, 1)
