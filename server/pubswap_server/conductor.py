"""The one place that moves runs forward.

It is woken after every change and at every tick, and decides from the database alone, so that
after a crash the same decision is taken again.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass

import structlog
from anyio import to_thread
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pubswap_protocol.adapter import AdapterLayout
from pubswap_protocol.errors import WrongState
from pubswap_protocol.messages import Drift, RunState
from pubswap_protocol.settings import Precision
from pubswap_protocol.wire import Tensors, view_update
from pubswap_server import exchanges, rounds, runs
from pubswap_server.aggregation import FedIT, drift
from pubswap_server.services import Services
from pubswap_server.state import ENDED, aggregated
from pubswap_server.tables import RoundRow, RunRow

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Aggregation:
    """What a round's mean is made of: the files in the order of the members' names."""

    round: int
    layout: AdapterLayout
    precision: Precision
    base: str  # the adapter that the round began from
    adapters: list[str]
    weights: list[float]


async def conduct(services: Services) -> None:
    """Advance every unfinished run, for ever."""
    while True:
        services.work.clear()
        for run in await services.database.read(_unfinished):
            try:
                await advance(services, run)
            except Exception:
                # One run's trouble must not stop the others; the next tick tries again.
                log.exception("advance failed", run=run)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(services.work.wait(), services.settings.tick_seconds)


def _unfinished(session: Session) -> list[str]:
    return list(session.scalars(select(RunRow.id).where(RunRow.state.not_in(ENDED))))


async def advance(services: Services, run: str) -> None:
    """Close what is due, and average the round if it is closed."""
    pending, moved = await services.database.write(lambda session: _close(session, run))
    if moved:
        services.bells.ring(run)
    if pending is not None:
        await _aggregate(services, run, pending)
        services.changed(run)


def _close(session: Session, run: str) -> tuple[Aggregation | None, bool]:
    row = session.get_one(RunRow, run, with_for_update=True)
    if row.state in ENDED:
        return None, False
    moved = exchanges.close_if_due(session, row)
    moved = rounds.close_if_due(session, row) or moved
    if row.state != RunState.AGGREGATING:
        return None, moved
    updates = rounds.taken(session, row)
    settings = runs.settings_of(row)
    uniform = settings.aggregation.weights == "uniform"
    return Aggregation(
        round=row.round,
        layout=runs.model_of(row).layout,
        precision=settings.wire.precision,
        base=session.get_one(RoundRow, (row.id, row.round - 1)).adapter or "",
        adapters=[update.canonical for update in updates],
        weights=[1.0 if uniform else float(update.metrics["examples"]) for update in updates],
    ), moved


async def _aggregate(services: Services, run: str, wanted: Aggregation) -> None:
    started = time.monotonic()

    def work() -> tuple[str, Drift]:
        files = _opened(services, wanted)
        digest, _ = services.blobs.write(FedIT().aggregate(files, wanted.weights))
        return digest, drift(files)

    digest, measured = await to_thread.run_sync(work)
    services.metrics.aggregation_seconds.observe(time.monotonic() - started)

    def publish(session: Session) -> None:
        row = session.get_one(RunRow, run, with_for_update=True)
        if row.state != RunState.AGGREGATING or row.round != wanted.round:
            raise WrongState(f"Run {run} moved on while round {wanted.round} was averaged.")
        done = session.get_one(RoundRow, (run, wanted.round))
        done.adapter, done.drift = digest, measured.model_dump(mode="json")
        runs.move(session, row, aggregated, adapter=digest)

    await services.database.write(publish)
    log.info("round published", run=run, round=wanted.round, adapter=digest)


def _opened(services: Services, wanted: Aggregation) -> list[Tensors]:
    base = services.blobs.path(wanted.base)
    paths = [services.blobs.path(digest) for digest in wanted.adapters]
    return [view_update(path, wanted.layout, wanted.precision, base) for path in paths]


def count_states(session: Session) -> dict[str, int]:
    """How many runs are in each state."""
    rows = session.execute(select(RunRow.state, func.count()).group_by(RunRow.state))
    return {row[0]: row[1] for row in rows}
