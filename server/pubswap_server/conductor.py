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

from pubswap_protocol.adapter import AdapterFile, AdapterLayout
from pubswap_protocol.errors import WrongState
from pubswap_protocol.factors import sent_layout
from pubswap_protocol.messages import RunState
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.wire import view_update
from pubswap_server import exchanges, rounds, runs
from pubswap_server.aggregation.round import Aggregated, aggregate
from pubswap_server.aggregation.updates import Updates
from pubswap_server.events import record
from pubswap_server.services import Services
from pubswap_server.state import ENDED, aggregated
from pubswap_server.tables import RoundRow, RunRow

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Aggregation:
    """What a round's adapter is made of: the files in the order of the members' names."""

    round: int
    settings: RunSettings
    layout: AdapterLayout
    members: list[str]
    adapters: list[str]
    weights: list[float]
    previous: str
    server_state: str | None


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
    before = session.get_one(RoundRow, (run, row.round - 1))
    assert before.adapter is not None  # or this round had not begun
    settings = runs.settings_of(row)
    uniform = settings.aggregation.weights == "uniform"
    return Aggregation(
        round=row.round,
        settings=settings,
        layout=runs.model_of(row).layout,
        members=[update.member for update in updates],
        adapters=[update.canonical for update in updates],
        weights=[1.0 if uniform else float(update.metrics["examples"]) for update in updates],
        previous=before.adapter,
        server_state=before.server_state,
    ), moved


async def _aggregate(services: Services, run: str, wanted: Aggregation) -> None:
    started = time.monotonic()

    def work() -> Aggregated:
        rules = wanted.settings.aggregation
        updates = _opened(services, wanted)
        return aggregate(updates, wanted.server_state, rules, services.blobs)

    made = await to_thread.run_sync(work)
    services.metrics.aggregation_seconds.observe(time.monotonic() - started)

    def publish(session: Session) -> None:
        row = session.get_one(RunRow, run, with_for_update=True)
        if row.state != RunState.AGGREGATING or row.round != wanted.round:
            raise WrongState(f"Run {run} moved on while round {wanted.round} was averaged.")
        done = session.get_one(RoundRow, (run, wanted.round))
        done.adapter, done.drift = made.adapter, made.drift.model_dump(mode="json")
        done.residual, done.server_state = made.residual, made.server_state
        for note in made.notes:
            record(session, run, note.kind, round=wanted.round, **note.details)
        runs.move(session, row, aggregated, adapter=made.adapter)

    await services.database.write(publish)
    log.info("round published", run=run, round=wanted.round, adapter=made.adapter)


def _opened(services: Services, wanted: Aggregation) -> Updates:
    path, precision = services.blobs.path, wanted.settings.wire.precision
    previous = AdapterFile(path(wanted.previous), wanted.layout)
    sent = sent_layout(wanted.layout, wanted.settings.aggregation.rule)
    return Updates(
        members=tuple(wanted.members),
        sources=tuple(view_update(path(d), sent, precision, previous) for d in wanted.adapters),
        weights=tuple(wanted.weights),
        previous=previous,
    )


def count_states(session: Session) -> dict[str, int]:
    """How many runs are in each state."""
    rows = session.execute(select(RunRow.state, func.count()).group_by(RunRow.state))
    return {row[0]: row[1] for row in rows}
