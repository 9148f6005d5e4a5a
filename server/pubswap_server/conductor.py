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
from sqlalchemy import select
from sqlalchemy.orm import Session

from pubswap_protocol.adapter import AdapterFile, AdapterLayout
from pubswap_protocol.errors import WrongState
from pubswap_protocol.factors import sent_layout
from pubswap_protocol.messages import RunState
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.wire import view_update
from pubswap_server import events, exchanges, rounds, runs, stalls
from pubswap_server.aggregation.round import Aggregated, Store, aggregate
from pubswap_server.aggregation.updates import Updates
from pubswap_server.metrics import Metrics
from pubswap_server.services import Services
from pubswap_server.state import ENDED, aggregated
from pubswap_server.tables import RoundRow, RunRow, now

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
        due = await services.database.read(_unfinished)
        for place, run in enumerate(due):
            services.metrics.backlog.set(len(due) - place)
            try:
                await advance(services, run)
            except Exception:
                # One run's trouble must not stop the others; the next tick tries again.
                log.exception("advance failed", run=run)
        services.metrics.backlog.set(0)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(services.work.wait(), services.settings.tick_seconds)


def _unfinished(session: Session) -> list[str]:
    return list(session.scalars(select(RunRow.id).where(RunRow.state.not_in(ENDED))))


async def advance(services: Services, run: str) -> None:
    """Close what is due, and average the round if it is closed."""
    pending, moved = await services.database.write(
        lambda session: _close(session, run, services.metrics)
    )
    if moved:
        services.bells.ring(run)
    if pending is not None:
        await _aggregate(services, run, pending)
        services.changed(run)


def _close(session: Session, run: str, metrics: Metrics) -> tuple[Aggregation | None, bool]:
    row = session.get_one(RunRow, run, with_for_update=True)
    if row.state in ENDED:
        return None, False
    moved = exchanges.close_if_due(session, row, metrics.exchange_seconds.observe)
    moved = rounds.close_if_due(session, row) or moved
    stalls.note(session, row)
    if row.state != RunState.AGGREGATING:
        return None, moved
    return inputs_of(session, row, row.round), moved


def inputs_of(session: Session, run: RunRow, round_: int) -> Aggregation:
    """What a round's adapter is, or was, made of; `round_` is 1 or more."""
    updates = rounds.taken(session, run, round_)
    before = session.get_one(RoundRow, (run.id, round_ - 1))
    assert before.adapter is not None  # or this round had not begun
    settings = runs.settings_of(run)
    uniform = settings.aggregation.weights == "uniform"
    return Aggregation(
        round=round_,
        settings=settings,
        layout=runs.model_of(run).layout,
        members=[update.member for update in updates],
        adapters=[update.canonical for update in updates],
        weights=[1.0 if uniform else float(update.metrics["examples"]) for update in updates],
        previous=before.adapter,
        server_state=before.server_state,
    )


async def _aggregate(services: Services, run: str, wanted: Aggregation) -> None:
    started = time.monotonic()

    def work() -> Aggregated:
        return made_of(services.blobs, wanted)

    made = await to_thread.run_sync(work)
    services.metrics.aggregation_seconds.observe(time.monotonic() - started)

    def publish(session: Session) -> float:
        row = session.get_one(RunRow, run, with_for_update=True)
        if row.state != RunState.AGGREGATING or row.round != wanted.round:
            raise WrongState(f"Run {run} moved on while round {wanted.round} was averaged.")
        done = session.get_one(RoundRow, (run, wanted.round))
        done.adapter, done.drift = made.adapter, made.drift.model_dump(mode="json")
        done.residual, done.server_state = made.residual, made.server_state
        for note in made.notes:
            events.record(session, run, note.kind, round=wanted.round, **note.details)
        began = events.last_at(session, run, ("started", "aggregated"))
        runs.move(session, row, aggregated, adapter=made.adapter)
        return (now() - began).total_seconds()

    services.metrics.round_seconds.observe(await services.database.write(publish))
    log.info("round published", run=run, round=wanted.round, adapter=made.adapter)


def made_of(blobs: Store, wanted: Aggregation) -> Aggregated:
    """A round's adapter and what goes with it, as blobs: the same of the same inputs."""
    previous = AdapterFile(blobs.path(wanted.previous), wanted.layout)
    sent = sent_layout(wanted.layout, wanted.settings.aggregation.rule)
    precision = wanted.settings.wire.precision
    updates = Updates(
        members=tuple(wanted.members),
        sources=tuple(
            view_update(blobs.path(digest), sent, precision, previous) for digest in wanted.adapters
        ),
        weights=tuple(wanted.weights),
        previous=previous,
    )
    return aggregate(updates, wanted.server_state, wanted.settings.aggregation, blobs)
