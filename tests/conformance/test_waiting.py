"""Waiting clients are cheap, and heartbeats do not wait."""

import asyncio
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from pubswap_protocol import paths
from pubswap_protocol.messages import Progress
from pubswap_server.database.engine import BUSY_SECONDS, READERS, WRITERS
from support.coordinator.coordinator import Server, begun, create
from support.coordinator.crowd import Crowd
from support.eventually import until

CROWD = 40
WAITING = "pubswap_long_polls"


def threads() -> int:
    """The number of threads of this process, in which the coordinator runs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Threads:")))


@pytest.mark.full
def test_many_that_wait_cost_no_thread_and_no_connection_and_are_answered_at_once(
    server: Server,
) -> None:
    """40 sockets need only the database's threads, and all get their task.

    The benchmark measures how fast 1,000 do.
    """
    fed = create(server, clients=1)
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    for number in range(CROWD):
        fed.join(f"client-{number}")
    before, services = threads(), server.app.state.services
    with Crowd(server.url, fed.run.id, list(fed.tokens.values()), 30) as crowd:
        until(lambda: services.metrics.registry.get_sample_value(WAITING) == CROWD)
        assert threads() - before <= READERS + WRITERS
        until(lambda: services.database.engine.pool.checkedout() == 0)
        begin = time.monotonic()
        fed.start()
        answers = crowd.answers()
    assert [kind for _, kind in answers] == ["train"] * CROWD
    assert max(at for at, _ in answers) - begin < 20  # less than the 30 s that they asked to wait


def test_a_heartbeat_is_answered_while_somebody_holds_the_database(server: Server) -> None:
    """It is kept in memory, and shown and written once the database is free again."""
    fed = begun(server)
    engine = server.app.state.services.database.engine
    blocker = engine.execution_options(immediate=True).connect()
    try:
        blocker.execute(text("UPDATE members SET active = active"))
        for step in (1, 2):
            # If it used the database, it would wait for BUSY_SECONDS and be refused.
            began = time.monotonic()
            fed.members["a"].heartbeat(fed.run.id, Progress(round=1, step=step, steps=2))
            assert time.monotonic() - began < BUSY_SECONDS
            time.sleep(0.8)
    finally:
        blocker.rollback()
        blocker.close()
    seen = next(m for m in fed.operator.members(fed.run.id).members if m.name == "a")
    assert seen.progress is not None
    assert seen.progress.step == 2


def test_a_heartbeat_does_not_stand_behind_what_all_others_ask(server: Server) -> None:
    """It is answered while all reader threads are busy with slow queries."""
    fed = begun(server)
    database, over = server.app.state.services.database, threading.Event()

    def long(session: Session) -> None:
        session.execute(text("SELECT 1"))
        over.wait(30)

    async def hold() -> None:
        await asyncio.gather(*(database.read(long) for _ in range(40)))

    holding = asyncio.run_coroutine_threadsafe(hold(), server.app.state.loop)
    try:
        until(lambda: database.engine.pool.checkedout() >= READERS)
        fed.members["a"].heartbeat(fed.run.id, Progress(round=1, step=1, steps=2))
        assert not holding.done()
    finally:
        over.set()
        holding.result(30)


def test_a_download_is_counted_without_a_write_before_it(server: Server) -> None:
    """It works while the database accepts no writes, and shows in the operator's view later."""
    fed = begun(server, method="fedavg")
    task = fed.members["a"].task(fed.run.id, 0)
    engine = server.app.state.services.database.engine
    blocker = engine.execution_options(immediate=True).connect()
    try:
        blocker.execute(text("UPDATE members SET active = active"))
        began = time.monotonic()
        size = len(fed.members["a"].blob(fed.run.id, task.adapter or ""))
        assert time.monotonic() - began < BUSY_SECONDS
    finally:
        blocker.rollback()
        blocker.close()
    assert fed.view().rounds[1].traffic.adapters_down == size
