"""Retention of what members send, on every database and store: storage stays bounded."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from structlog.testing import capture_logs

from pubswap_client.recipes.check import coordinator_bytes
from pubswap_protocol import paths
from pubswap_protocol.command_line.progress_bar import progress_bar
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import NotFound, Unauthenticated, UnknownRun, WrongState
from pubswap_protocol.messages import Evaluation
from pubswap_protocol.tensors.adapter import encode_adapter
from pubswap_server.admin.verify import verify
from pubswap_server.aggregation.round import aggregate_round
from pubswap_server.conductor import conductor, maintenance
from pubswap_server.conductor.maintenance import sweep
from pubswap_server.database.tables import Base
from pubswap_server.exchange import exchanges
from pubswap_server.http.dependencies import RunAccess
from pubswap_server.runs.auth import Operator
from pubswap_server.settings import ServerSettings
from support.coordinator.coordinator import Federation, Server, begun, serving, settings_for
from support.coordinator.places import on_sqlite
from support.eventually import until

ROUNDS, KEPT, CLIENTS = 6, 2, 2
KEPT_ONES = ("final", "best", "2", "4")  # of the run's four rounds


@pytest.fixture
def settings(database_url: str, blob_url: str | None, tmp_path: Path) -> ServerSettings:
    """The settings of a coordinator for a single test."""
    there = {"database_url": database_url, "blob_url": blob_url and f"{blob_url}/{tmp_path.name}"}
    return settings_for(tmp_path / "place").model_copy(update={**there, "keep_rounds": KEPT})


def sweep_all(server: Server) -> None:
    """Sweep as if the orphans' grace period were over."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance, "ORPHAN_SECONDS", -1.0)
        server.do(sweep(server.app.state.services))


def one_round(fed: Federation, round_: int) -> int:
    """Play a round in which a member also uploads an unused adapter; returns an adapter's size."""
    data = encode_adapter(fed.run.model.layout, fed.adapter(1000 + round_))
    fed.members["a"].put_blob(fed.run.id, data)
    body = fed.responses("b", round_, 1, [1, 2])
    fed.members["b"].submit_responses(fed.run.id, round_, 1, body)
    for name in ("a", "b"):
        fed.submit(name, round_, fed.adapter(2 * round_ + (name == "a")))
    fed.wait_for(round_)
    return len(data)


@pytest.mark.full
def test_a_long_run_keeps_global_adapters_and_its_last_rounds_updates(
    settings: ServerSettings,
) -> None:
    """Storage grows by one adapter a round; kept rounds are verified, and freed ones counted."""
    with serving(settings) as server, server.closing:
        fed = begun(server, rounds=ROUNDS, method={"deadline_seconds": 0.01})
        services = server.app.state.services
        for round_ in range(1, ROUNDS + 1):
            size = one_round(fed, round_)
            if round_ % 3 == 0:
                sweep_all(server)
                most = coordinator_bytes(fed.run.settings, fed.run.model.layout)
                sets = 1 << 16  # the tokenizer and the problems
                assert sum(blob.size for blob in services.blobs.blobs()) <= most + sets
                adapters = [blob for blob in services.blobs.blobs() if blob.size == size]
                assert len(adapters) <= (round_ + 1) + KEPT * CLIENTS
        first, last = (
            encode_adapter(fed.run.model.layout, fed.adapter(n)) for n in (2, 2 * ROUNDS)
        )
        with server.http(fed.tokens["b"]) as http:
            path = paths.BLOB.format(run=fed.run.id, digest=digest_of(last))
            assert http.get(path).content == last
            path = paths.BLOB.format(run=fed.run.id, digest=digest_of(first))
            assert http.get(path).json()["code"] == "unknown_blob"
        assert fed.hand_in("b", 1, first).status == "accepted"
    report = verify(settings, progress_bar())
    assert report.healthy
    assert (report.rounds, report.freed) == (1 + KEPT, ROUNDS - KEPT)
    assert f"{ROUNDS - KEPT} earlier rounds could not be recomputed" in report.text()


def test_what_is_lost_of_the_kept_rounds_is_still_a_fault(settings: ServerSettings) -> None:
    """A missing update counts as freed in an old round, but as lost in one of the last rounds."""
    with serving(settings) as server, server.closing:
        fed = begun(server, rounds=5, method="fedavg")
        for round_ in range(1, 6):
            for name in ("a", "b"):
                fed.submit(name, round_, fed.adapter(2 * round_ + (name == "a")))
            fed.wait_for(round_)
        lost = digest_of(encode_adapter(fed.run.model.layout, fed.adapter(10)))
        server.app.state.services.blobs.remove_older(lost, time.time() + 60)
    report = verify(settings, progress_bar())
    assert [one.digest for one in report.lost] == [lost]
    assert (report.rounds, report.freed, len(report.unchecked)) == (2, 3, 1)


def blobs_after_sweeping(server: Server) -> set[str]:
    """The store's blobs after its orphans are swept."""
    sweep_all(server)
    return {blob.name for blob in server.app.state.services.blobs.blobs()}


def finished(server: Server, **overrides: object) -> Federation:
    """A finished run of four rounds, whose second is the best."""
    fed = begun(server, rounds=4, method="fedavg", **overrides)
    for round_ in range(1, 5):
        for name in ("a", "b"):
            fed.submit(name, round_, fed.adapter(2 * round_ + (name == "a")))
        fed.wait_for(round_)
    for round_ in range(5):
        score = 0.9 if round_ == 2 else 0.1
        found = Evaluation(pass_at_1=score, by_topic={}, problems=5, seconds=1)
        fed.members["judge"].submit_evaluation(fed.run.id, round_, found)
    return fed


@on_sqlite
def test_work_for_a_run_that_is_deleted_meanwhile_is_given_up(
    settings: ServerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aggregation, verification and requested exchanges end without an error."""
    with serving(settings) as server, server.closing:
        fed, services = begun(server, method="fedavg"), server.app.state.services
        average = aggregate_round

        def deleting(*inputs: Any) -> Any:
            averaged = average(*inputs)
            fed.operator.move_run(fed.run.id, paths.RUN_CANCEL)
            fed.operator.delete_run(fed.run.id)
            return averaged

        monkeypatch.setattr(conductor, "aggregate_round", deleting)
        with capture_logs() as lines:
            for name in ("a", "b"):
                fed.submit(name, 1, fed.adapter(1))
            until(lambda: any(line["event"].startswith("advance") for line in lines))
        (line,) = (line for line in lines if line["event"].startswith("advance"))
        assert (line["event"], line["log_level"]) == ("advance given up", "info")
        access = RunAccess(fed.run.id, Operator(), services)
        with pytest.raises(UnknownRun):
            server.do(access.read_for_all(lambda session, row: row))
        verdicts = partial(exchanges.unverified_submission, key=(fed.run.id, 1, 1, "a"))
        assert server.do(services.database.read(verdicts)) is None


def test_a_deleted_run_leaves_nothing_and_takes_nothing_of_another(
    settings: ServerSettings,
) -> None:
    """No row, blob or token is left. A run in progress is refused, and so is a name."""
    with serving(settings) as server, server.closing:
        other = begun(server)
        before = blobs_after_sweeping(server)
        fed = begun(server, seed=9)
        fed.members["a"].put_blob(fed.run.id, encode_adapter(fed.run.model.layout, fed.adapter(1)))
        with pytest.raises(WrongState, match="only one that has ended"):
            fed.operator.delete_run(fed.run.id)
        fed.operator.move_run(fed.run.id, paths.RUN_CANCEL)
        with pytest.raises(UnknownRun, match="a name will not do"):
            fed.operator.delete_run(fed.run.name)
        fed.operator.delete_run(fed.run.id)
        for ask in (fed.view, lambda: fed.operator.delete_run(fed.run.id)):
            with pytest.raises(UnknownRun):
                ask()
        with pytest.raises(Unauthenticated, match="or its run deleted"):
            fed.members["a"].task(fed.run.id, 0)
        with server.app.state.services.database.engine.connect() as connection:
            for table in Base.metadata.sorted_tables:
                if "run_id" in table.columns:
                    of_run = table.columns.run_id == fed.run.id
                    query = select(func.count()).select_from(table).where(of_run)
                    assert connection.scalar(query) == 0, table.name
        assert blobs_after_sweeping(server) == before
        assert other.operator.events(other.run.id).events[0].kind == "created"
        other.submit("a", 1, other.adapter(1))
        other.submit("b", 1, other.adapter(2))
        other.wait_for(1)
    assert verify(settings, progress_bar()).healthy


@pytest.mark.full
def test_an_archived_run_has_its_final_and_its_best_adapter(settings: ServerSettings) -> None:
    """Their exports stay the same, the run's records stay, and archiving twice is harmless."""
    with serving(settings) as server, server.closing:
        fed = finished(server)
        exported = {which: fed.operator.global_adapter(fed.run.id, which) for which in KEPT_ONES}
        view, before = fed.view(), blobs_after_sweeping(server)
        for _ in range(2):
            fed.operator.move_run(fed.run.id, paths.RUN_ARCHIVE)
        left = blobs_after_sweeping(server)
        # Three of five adapters and two rounds' updates go.
        assert len(before - left) == 3 + KEPT * CLIENTS
        assert left < before
        for which, data in exported.items():
            assert fed.operator.global_adapter(fed.run.id, which) == data
        with pytest.raises(NotFound):
            fed.operator.global_adapter(fed.run.id, "1")
        assert fed.view().best == view.best
        kinds = [event.kind for event in fed.operator.events(fed.run.id).events]
        assert kinds.count("archived") == 1
    report = verify(settings, progress_bar())
    assert report.healthy
    assert (report.rounds, report.freed) == (0, 2)
