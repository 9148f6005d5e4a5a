"""The one place that moves runs forward.

It is woken after every change and at every tick, and decides from the database alone, so that
after a crash the same decision is taken again.
"""

import asyncio
import time
from dataclasses import dataclass, field

import numpy as np
import structlog
from anyio import to_thread
from sqlalchemy import Select, and_, exists, or_, select, union_all
from sqlalchemy.orm import Session

from pubswap_protocol.errors import Fenced, Gone, InvalidAdapter, NoSpace, PubSwapError, WrongState
from pubswap_protocol.messages import Role, RunState
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import AdapterFile, AdapterLayout, sent_layout
from pubswap_protocol.tensors.update_encoding import largest_update, view_update
from pubswap_server.aggregation.gram import sampled
from pubswap_server.aggregation.round import Aggregated, Store, aggregate
from pubswap_server.aggregation.updates import Updates
from pubswap_server.conductor.leases import Lease
from pubswap_server.database.tables import (
    BlobRow,
    RoundRow,
    RunRow,
    SwapRow,
    UpdateRow,
    UploadRow,
    now,
)
from pubswap_server.exchange import exchanges
from pubswap_server.exchange.donation import Exchange
from pubswap_server.runs import events, members, retention, rounds, runs, uploads
from pubswap_server.runs.events import record
from pubswap_server.runs.quorum import missing
from pubswap_server.runs.state import ENDED, ROUND_UNDER_WAY, aggregated
from pubswap_server.services import Services

_REMEDY = "Reinstate or invite clients, or cancel the run."


@dataclass(frozen=True)
class Room:
    """The store's free bytes, None if it has no limit, and how many of them stay free."""

    free: int | None
    spare: int


def note_stall(session: Session, run: RunRow, room: Room) -> None:
    """Keep and log what a run waits for, when that has changed."""
    found = _reason(session, run, room)
    if found == run.waiting_for:
        return
    run.waiting_for = found
    if found is not None:
        record(session, run.id, "waiting", reason=found, round=run.round)


def _reason(session: Session, run: RunRow, room: Room) -> str | None:
    """Why no arrival can bring about a quorum, or none can be stored; None while one can."""
    if run.failure is not None:
        return run.failure
    if run.state not in ROUND_UNDER_WAY:
        return None
    settings = runs.settings_of(run)
    for row in exchanges.open_ones(session, run):
        found = exchanges.turnout(session, row)
        if short := missing(found, settings.swap.quorum):
            return (
                f"Public step {row.swap} of round {run.round} closes with {settings.swap.quorum} "
                f"or more clients; {found.arrived} answered and {short} more are missing. {_REMEDY}"
            )
    found = rounds.turnout(session, run)
    if short := missing(found, settings.aggregation.quorum):
        return (
            f"Round {run.round} closes with {settings.aggregation.quorum} or more updates; "
            f"{found.arrived} came and {short} more {Role.CLIENT}s are missing. {_REMEDY}"
        )
    return _full(session, run, room) if found.outstanding else None


def _full(session: Session, run: RunRow, room: Room) -> str | None:
    """Why the updates of members that are expected cannot be stored."""
    size = largest_update(runs.sent_layout_of(run), runs.settings_of(run).wire.precision)
    try:
        uploads.check_room(session, size, room.spare, room.free)
        return None
    except NoSpace:
        here = union_all(
            rounds.arrived(run),
            *(select(row.member).where(row.run_id == run.id) for row in (BlobRow, UploadRow)),
        )
        if not members.outstanding(session, run.id, here):
            return None
        return (
            f"The coordinator's disk has no room for an update of {size} bytes. Make room there, "
            "or delete runs that have ended; members try again by themselves."
        )


REMEDY = (
    "See the updates with `pubswap run show RUN`; then leave one out with `pubswap run exclude RUN "
    "MEMBER`, go back with `pubswap run rollback RUN --to ROUND`, or cancel the run."
)

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
    """Advance the runs that change, and at every tick those that time may move.

    None waits for another. What changed while nobody conducted is looked at in the beginning.
    """
    under_way: dict[str, asyncio.Task[None]] = {}
    again: set[str] = set()

    def ended(task: asyncio.Task[None]) -> None:
        run = task.get_name()
        del under_way[run]
        services.metrics.backlog.set(len(under_way))
        if run in again:
            again.discard(run)
            services.changes.notify(run, awaited=False)

    for run in await _found(services, _unfinished()):
        services.changes.notify(run, awaited=False)
    try:
        while True:
            changed = await services.changes.changed_runs(services.settings.tick_seconds)
            for run in changed if changed is not None else await _found(services, _time_moves()):
                if changed is None and not services.attempts.due(run):
                    continue
                if run not in under_way:
                    task = under_way[run] = asyncio.create_task(_tried(services, run), name=run)
                    task.add_done_callback(ended)
                    services.metrics.backlog.set(len(under_way))
                elif changed is not None:
                    again.add(run)
    finally:
        tasks = list(under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _found(services: Services, query: Select[str]) -> list[str]:
    try:
        return await services.database.read(lambda session: list(session.scalars(query)))
    except PubSwapError as error:
        log.warning("cannot look for work", error=error.detail)
        return []


def _unfinished() -> Select[str]:
    return select(RunRow.id).where(RunRow.state.not_in(ENDED))


def _time_moves() -> Select[str]:
    """The runs with a lease that may end, or a deadline: it counts from the first arrival."""
    arrived = exists().where(UpdateRow.run_id == RunRow.id, UpdateRow.round == RunRow.round)
    open_step = exists().where(
        SwapRow.run_id == RunRow.id, SwapRow.round == RunRow.round, SwapRow.closed.is_(False)
    )
    under_way = and_(RunRow.state.in_(ROUND_UNDER_WAY), or_(arrived, open_step))
    return select(RunRow.id).where(or_(RunRow.state == RunState.AGGREGATING, under_way))


async def _tried(services: Services, run: str) -> None:
    try:
        await advance(services, run)
        services.attempts.moved(run)
    except (Fenced, WrongState) as error:
        # Another replica, or the operator, has moved it meanwhile.
        log.info("advance given up", run=run, code=error.code, error=error.detail)
    except PubSwapError as error:
        log.warning("advance failed", run=run, code=error.code, error=error.detail)
        await _failed(services, run, error.detail)
    except Exception as error:
        # One run's trouble must not stop the others; it is tried again.
        log.exception("advance failed", run=run)
        await _failed(services, run, f"{type(error).__name__}, see the coordinator's log.")


async def _failed(services: Services, run: str, why: str) -> None:
    """Say what a run fails at, once it has failed several times."""
    if not services.attempts.failed(run):
        return

    def note(session: Session) -> None:
        row = session.get_one(RunRow, run, with_for_update=True)
        if row.state not in ENDED:
            row.failure = f"Round {row.round} cannot go on: {why} {REMEDY}"
            note_stall(session, row, _room(services))

    try:
        await services.database.write(note)
    except PubSwapError as error:
        log.warning("the failure was not noted", run=run, error=error.detail)


async def advance(services: Services, run: str) -> None:
    """Close what is due, and average the round if it is closed and no other replica does."""
    found = await _close(services, run, {})
    while found.due:
        found = await _close(services, run, await _outcomes(services, run, found.due))
    if found.lease is not None and found.wanted is not None:
        await services.heartbeats.flush()
        async with services.leases.held(services.database, found.lease):
            await _aggregate(services, found.lease, found.wanted)


@dataclass(frozen=True)
class _Next:
    """What is to be done outside of a transaction: outcomes of exchanges, or the average."""

    due: list[exchanges.Step] = field(default_factory=list)
    lease: Lease | None = None
    wanted: Aggregation | None = None


async def _close(
    services: Services, run: str, outcomes: dict[exchanges.Step, exchanges.Outcome]
) -> _Next:
    timed = services.metrics.exchange_seconds.observe

    def work(session: Session) -> _Next:
        row = session.get(RunRow, run, with_for_update=True)
        if row is None or row.state in ENDED:
            return _Next()
        if due := exchanges.close_due(session, row, outcomes, timed):
            return _Next(due)
        rounds.close_if_due(session, row)
        if row.state != RunState.AGGREGATING:
            row.failure = None
        note_stall(session, row, _room(services))
        lease = services.leases.take(session, run) if row.state == RunState.AGGREGATING else None
        return _Next([], lease, inputs_of(session, row, row.round) if lease else None)

    return await services.database.write(work)


async def _outcomes(
    services: Services, run: str, due: list[exchanges.Step]
) -> dict[exchanges.Step, exchanges.Outcome]:
    """What these exchanges come to with those who have answered by now."""
    found = {}
    for round_, swap in due:

        def look(session: Session, round_: int = round_, swap: int = swap) -> Exchange:
            return exchanges.answered(session, session.get_one(RunRow, run), round_, swap)

        answered = await services.database.read(look)
        if answered.correct:  # or all were withdrawn meanwhile
            found[round_, swap] = await to_thread.run_sync(exchanges.outcome, answered)
    return found


def _room(services: Services) -> Room:
    return Room(services.blobs.free_bytes(), services.settings.spare_bytes)


def inputs_of(session: Session, run: RunRow, round_: int) -> Aggregation:
    """What a round's adapter is, or was, made of; `round_` is 1 or more.

    Raises Gone if some of it was freed.
    """
    updates = rounds.taken(session, run, round_)
    before = session.get_one(RoundRow, (run.id, round_ - 1))
    adapters = [update.canonical for update in updates if update.canonical is not None]
    if before.adapter is None or len(adapters) < len(updates):
        raise Gone(f"What round {round_} of run {run.id} was made of is not kept any more.")
    settings = runs.settings_of(run)
    uniform = settings.aggregation.weights == "uniform"
    return Aggregation(
        round=round_,
        settings=settings,
        layout=runs.model_of(run).layout,
        members=[update.member for update in updates],
        adapters=adapters,
        weights=[1.0 if uniform else float(update.metrics["examples"]) for update in updates],
        previous=before.adapter,
        server_state=before.server_state,
    )


async def _aggregate(services: Services, lease: Lease, wanted: Aggregation) -> None:
    run = lease.run
    started = time.monotonic()

    def work() -> Aggregated:
        return made_of(services.blobs, wanted)

    made = await to_thread.run_sync(work)
    services.metrics.aggregation_seconds.observe(time.monotonic() - started)

    def publish(session: Session) -> float:
        row = session.get_one(RunRow, run, with_for_update=True)
        services.leases.give_back(session, lease)
        if row.state != RunState.AGGREGATING or inputs_of(session, row, row.round) != wanted:
            raise WrongState(f"Run {run} moved on while round {wanted.round} was averaged.")
        done = session.get_one(RoundRow, (run, wanted.round))
        done.adapter = made.adapter
        done.drift = made.drift.model_dump(mode="json") if made.drift else None
        done.residual, done.server_state = made.residual, made.server_state
        for note in made.notes:
            events.record(session, run, note.kind, round=wanted.round, **note.details)
        began = events.last_at(session, run, ("started", "aggregated"))
        runs.move(session, row, aggregated, adapter=made.adapter)
        if keep := services.settings.keep_rounds:
            retention.free_through(session, run, wanted.round - keep)
        return (now() - began).total_seconds()

    services.metrics.round_seconds.observe(await services.database.write(publish))
    if made.drift is None:
        services.metrics.drift_no_number.inc()
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
        largest_share=wanted.settings.aggregation.max_weight_share,
    )
    settings = wanted.settings
    sample = sampled(len(wanted.members), settings.seed, wanted.round)
    try:
        return aggregate(updates, wanted.server_state, settings.aggregation, blobs, sample)
    except InvalidAdapter as error:
        raise InvalidAdapter(f"{error.detail} {_farthest(updates)}") from None


def _farthest(updates: Updates) -> str:
    """Whose updates hold the largest numbers: the operator has to choose."""
    found = {
        member: max(float(np.abs(source.tensor(name)).max()) for name in source.layout.tensors)
        for member, source in zip(updates.members, updates.sources, strict=True)
    }
    first = sorted(found, key=lambda member: -found[member])[:3]
    largest = ", ".join(f"{member} {found[member]:.3g}" for member in first)
    return f"The largest numbers of the updates: {largest}."
