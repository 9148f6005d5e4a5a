"""Two coordinators on one database and one folder: every route works on either."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy.orm import Session

from pubswap_protocol import paths
from pubswap_protocol.errors import Fenced
from pubswap_protocol.messages import Progress, Role, RunState, TaskKind
from pubswap_protocol.tensors.adapter import decode_adapter
from pubswap_server.aggregation.round import aggregate_round
from pubswap_server.conductor import conductor
from pubswap_server.conductor.leases import Lease, Leases, start_name
from pubswap_server.database.engine import Database
from pubswap_server.database.tables import LeaseRow, RunRow
from support.coordinator.coordinator import Federation, Server, begun, create, serving, settings_for
from support.eventually import until


@pytest.fixture(scope="module")
def pair(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Server]]:
    """Two coordinators with the same database and data folder."""
    url, folder = new_database(), tmp_path_factory.mktemp("pair")
    shared = {"database_url": url, "workers": 2, "lease_seconds": 1.0, "tick_seconds": 5.0}
    shared["max_wait_seconds"] = 30.0
    settings = settings_for(folder / "data").model_copy(update=shared)
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(settings)) for _ in range(2)]
        for server in servers:
            stack.enter_context(server.closing)
        yield servers[0], servers[1]


def seen_from(fed: Federation, server: Server) -> Federation:
    """The same run and members, with requests to another replica."""
    members = {name: server.client(token) for name, token in fed.tokens.items()}
    return replace(fed, server=server, operator=server.client(), members=members)


def test_members_may_ask_any_replica(pair: tuple[Server, Server]) -> None:
    """A run with exchanges finishes although its requests alternate between two coordinators."""
    here = begun(pair[0])
    there = seen_from(here, pair[1])
    for round_ in (1, 2):
        assert there.members["a"].task(here.run.id, 5).round == round_
        body = here.responses("a", round_, 1, [0, 2])
        here.members["a"].submit_responses(here.run.id, round_, 1, body)
        assert there.members["a"].submit_responses(here.run.id, round_, 1, body)
        there.members["b"].submit_responses(
            here.run.id, round_, 1, there.responses("b", round_, 1, [4, 2])
        )
        groups = here.members["a"].exchanged(here.run.id, round_, 1)
        assert groups == there.members["a"].exchanged(here.run.id, round_, 1)
        mine, theirs = here.adapter(round_), here.adapter(10 + round_)
        assert here.submit("a", round_, mine) == there.submit("a", round_, mine) == "accepted"
        assert there.members["a"].task(here.run.id, 0).kind is TaskKind.WAIT
        assert there.submit("b", round_, theirs) == "accepted"
        here.wait_for(round_)
        adapter = there.operator.global_adapter(here.run.id, str(round_))
        mean = decode_adapter(here.run.model.layout, adapter)
        for name in mine:
            middle = (mine[name].astype(np.float64) + theirs[name]) / 2
            assert np.allclose(mean[name], middle, atol=1e-7)
    assert there.view().state is RunState.FINISHED
    kinds = [event.kind for event in there.operator.events(here.run.id).events]
    assert kinds.count("aggregated") == kinds.count("updates closed") == 2


def test_a_client_that_waits_at_one_replica_hears_of_a_change_at_the_other(
    pair: tuple[Server, Server],
) -> None:
    """Well before the end of its thirty-second wait, when it would look anyway."""
    here = create(pair[0], clients=1)
    here.operator.move_run(here.run.id, paths.RUN_OPEN)
    here.enroll("a")
    there = seen_from(here, pair[1])
    took: list[float] = []

    def wait() -> None:
        assert there.members["a"].task(here.run.id, 30).kind is TaskKind.TRAIN
        took.append(time.monotonic())

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: pair[1].long_polls() == 1)
    begin = time.monotonic()
    here.start()
    waiting.join(60)
    assert took[0] - begin < 20


def test_a_heartbeat_at_one_replica_is_seen_at_the_other(pair: tuple[Server, Server]) -> None:
    """The other replica sees it once it is written, in about a second."""
    here = begun(pair[0])
    there = seen_from(here, pair[1])
    here.members["a"].heartbeat(here.run.id, Progress(round=1, step=2, steps=2))
    until(lambda: any(m.progress for m in there.operator.members(here.run.id).members))
    judge = next(m for m in there.view().members if m.role is Role.EVALUATOR)
    assert judge.progress is None


def test_steps_reported_to_either_replica_are_one_curve(pair: tuple[Server, Server]) -> None:
    """Also if both hear of the same step, and the later heartbeat comes first."""
    here = begun(pair[0], local_steps=4)
    there = seen_from(here, pair[1])
    for fed, step, reward in ((there, 3, 0.5), (here, 1, 0.25), (there, 2, 0.25), (here, 3, 0.5)):
        progress = Progress(round=1, step=step, steps=4, reward=reward)
        fed.members["a"].heartbeat(here.run.id, progress)
    wanted = [(1, 0.25), (2, 0.25), (3, 0.5)]
    for fed in (here, there):
        read = fed.operator.steps
        until(lambda read=read: [(p.step, p.reward) for p in read(here.run.id)] == wanted)


@pytest.fixture
def database(shared_server: Server) -> Iterator[Database]:
    """A separate connection pool to the shared database."""
    opened = Database(shared_server.app.state.services.settings.sqlalchemy_url)
    yield opened
    opened.close()


class Steady:
    """A clock that only moves when told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


async def took(database: Database, leases: Leases, run: str) -> Lease | None:
    """Try to take a run's lease; returns None if another replica holds it."""
    return await database.write(lambda session: leases.take(session, run))


def in_a_loop(work: Callable[[], Any]) -> None:
    """Run an asynchronous test."""
    asyncio.run(work())


def test_a_lease_is_taken_over_only_when_its_holder_shows_no_life(
    server: Server, database: Database
) -> None:
    """Heartbeats keep it, silence for its whole term loses it, and the old holder is fenced."""
    run = create(server).run.id
    clock = Steady()
    first, second = Leases("first", 10, clock), Leases("second", 10, clock)

    async def play() -> None:
        lease = await took(database, first, run)
        assert lease is not None
        for _ in range(3):
            assert await took(database, second, run) is None
            clock.seconds += 9
            await database.write(lambda session: first.beat(session, lease))
        assert await took(database, second, run) is None
        clock.seconds += 9.9
        assert await took(database, second, run) is None
        clock.seconds += 0.1
        taken = await took(database, second, run)
        assert taken is not None
        assert taken.term > lease.term
        with pytest.raises(Fenced):
            await database.write(lambda session: first.beat(session, lease))

        def publish(session: Session) -> None:
            session.get_one(RunRow, run).name = "renamed-by-the-stalled"
            session.flush()
            first.give_back(session, lease)

        with pytest.raises(Fenced):
            await database.write(publish)
        name = await database.read(lambda session: session.get_one(RunRow, run).name)
        assert name != "renamed-by-the-stalled"
        await database.write(lambda session: second.give_back(session, taken))
        assert await took(database, first, run) is not None

    in_a_loop(play)


def test_a_lease_is_kept_while_its_work_is_under_way_and_released_if_that_fails(
    server: Server, database: Database
) -> None:
    """The holder adds beats by itself; after an error the other need not wait for its silence."""
    run = create(server).run.id
    first, second = Leases("first", 0.02), Leases("second", 1000)

    def beats(session: Session) -> int:
        return session.get_one(LeaseRow, run).beats

    async def play() -> None:
        lease = await took(database, first, run)
        assert lease is not None
        with pytest.raises(ZeroDivisionError):
            async with asyncio.timeout(60), first.held(database, lease):
                while await database.read(beats) < 2:
                    await asyncio.sleep(0.01)
                assert await took(database, second, run) is None
                raise ZeroDivisionError
        assert await took(database, second, run) is not None

    in_a_loop(play)


def test_replicas_of_one_host_and_port_do_not_take_each_others_work(
    pair: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although a round's mean takes longer than many ticks, only one of them computes it.

    They have the same settings, like two machines made from one image.
    """
    began: list[str] = []

    def slowly(inputs: Any, blobs: Any) -> Any:
        began.append(inputs.adapters[0])
        time.sleep(0.5)
        return aggregate_round(inputs, blobs)

    monkeypatch.setattr(conductor, "aggregate_round", slowly)
    for server in pair:
        services = server.app.state.services
        settings = services.settings.model_copy(update={"tick_seconds": 0.05})
        monkeypatch.setattr(services, "settings", settings)
        monkeypatch.setattr(services.leases, "seconds", 60.0)  # a busy machine may beat late
    here = begun(pair[0], method="fedavg", rounds=1)
    there = seen_from(here, pair[1])
    assert here.submit("a", 1, here.adapter(1)) == "accepted"
    assert there.submit("b", 1, here.adapter(2)) == "accepted"
    assert here.wait_for(1).state is RunState.FINISHED
    assert len(began) == 1


def test_what_a_replica_changed_before_it_died_is_seen_to_by_the_other(
    pair: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica that makes a change advances the run right away; if it cannot, another does."""
    here = begun(pair[0], method="fedavg", rounds=1)
    for server in pair:
        services = server.app.state.services
        settings = services.settings.model_copy(update={"tick_seconds": 0.05})
        monkeypatch.setattr(services, "settings", settings)
    # Its transactions are committed, but its conductor is never notified and never polls.
    died = pair[0].app.state.services
    monkeypatch.setattr(died.database, "on_change", lambda run, awaited: None)
    monkeypatch.setattr(died.changes.polls, "due", lambda runs: [])
    for number, name in enumerate("ab"):
        assert here.submit(name, 1, here.adapter(number)) == "accepted"
    assert here.wait_for(1).state is RunState.FINISHED


def test_the_only_process_on_a_sqlite_file_goes_on_at_once_after_it_was_killed(
    tmp_path: Path,
) -> None:
    """After a restart mid-aggregation, it does not wait for its predecessor's lease to expire."""
    settings = settings_for(tmp_path).model_copy(update={"lease_seconds": 1000.0})
    with serving(settings) as server, server.closing:
        run = create(server).run.id
        database = server.app.state.services.database
        assert server.do(took(database, Leases(start_name(), 1000), run)) is not None
    with serving(settings) as server:
        services = server.app.state.services
        assert server.do(took(services.database, services.leases, run)) is not None


def test_a_change_that_was_decided_on_an_older_state_is_refused(
    server: Server, database: Database
) -> None:
    """Nothing is written unless the run's epoch is still the one that was read."""
    run = create(server).run.id

    async def play() -> None:
        stale = await database.read(lambda session: session.get_one(RunRow, run))
        before = stale.epoch
        server.client().move_run(run, paths.RUN_OPEN)
        stale.state = RunState.CANCELLED

        with pytest.raises(Fenced):
            await database.write(lambda session: session.add(stale))
        now = await database.read(lambda session: session.get_one(RunRow, run))
        assert now.state == RunState.OPEN
        assert now.epoch > before

    in_a_loop(play)
