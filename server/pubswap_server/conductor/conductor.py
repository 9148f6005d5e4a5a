"""The one place that moves runs forward.

It is woken after every change that this process makes, and at ticks. It decides from the database
alone, so after a crash it takes the same decision again.
"""

import asyncio
import time
from datetime import timedelta
from functools import partial

import structlog
from anyio import to_thread
from sqlalchemy import Select, and_, exists, or_, select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import Fenced, PubSwapError, UnknownRun, WrongState
from pubswap_protocol.messages import PublicStepSummary, RunState
from pubswap_server.aggregation.inputs import RoundInputs, inputs_of
from pubswap_server.aggregation.log_lines import STANDS_OUT
from pubswap_server.aggregation.round import aggregate_round
from pubswap_server.clock import now
from pubswap_server.conductor import stalls
from pubswap_server.conductor.leases import Lease
from pubswap_server.database.tables import PublicStepRow, RoundRow, RunRow, UpdateRow
from pubswap_server.exchange import exchanges
from pubswap_server.monitoring.webhook import Notice
from pubswap_server.runs import events, history, members, retention, rounds, runs
from pubswap_server.runs.events import ROUND_BEGINS
from pubswap_server.runs.state import ENDED, ROUND_UNDER_WAY, aggregated
from pubswap_server.services import Services

log = structlog.get_logger(__name__)

# The rest after a pass over a run: a multiple of the pass's own time, and at most so many seconds.
REST_SHARE, MAX_REST_SECONDS = 4.0, 0.1


async def conduct(services: Services) -> None:
    """Advance the runs that change here, and at ticks those that time may move.

    No run waits for another. At the start, every unfinished run is looked at, because it may have
    changed while no conductor ran. Changes that another process made just before it died are found
    at the next tick. Why a run waits is noted only at the tick after a change, because members hand
    in far more often.
    """
    under_way: dict[str, asyncio.Task[None]] = {}
    again: set[str] = set()
    changed_since: set[str] = set()  # the last tick
    to_explain: set[str] = set()  # runs whose reason to wait is to be noted, too

    def ended(task: asyncio.Task[None]) -> None:
        run = task.get_name()
        del under_way[run]
        services.metrics.backlog.set(len(under_way))
        if run in again:
            again.discard(run)
            services.changes.notify(run, awaited=False)

    unfinished = select(RunRow.id).where(RunRow.state.not_in(ENDED))
    for run in await _runs(services, unfinished):
        services.changes.notify(run, awaited=False)
    tick = time.monotonic() + services.settings.tick_seconds
    try:
        while True:
            changed = await services.changes.changed_runs(max(0.0, tick - time.monotonic()))
            again |= changed & under_way.keys()
            changed_since |= changed
            if time.monotonic() >= tick:
                moved_by_time = await _runs(services, _time_moves())
                to_explain.update(services.changes.polls.due(changed_since.union(moved_by_time)))
                changed_since = set()
                tick = time.monotonic() + services.settings.tick_seconds
            # A run under way is explained at its next change, or at the next tick.
            for run in sorted((changed | to_explain) - under_way.keys()):
                tried = _tried(services, run, run in to_explain)
                to_explain.discard(run)
                task = under_way[run] = asyncio.create_task(tried, name=run)
                task.add_done_callback(ended)
                services.metrics.backlog.set(len(under_way))
    finally:
        tasks = list(under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _runs(services: Services, query: Select[str]) -> list[str]:
    try:
        return await services.database.read(
            lambda session: list(session.scalars(query)), single=True
        )
    except PubSwapError as error:
        log.warning("cannot look for work", error=error.detail)
        return []


def _time_moves() -> Select[str]:
    """The runs with a lease that may expire, a deadline (which counts from the first arrival), a
    silent client, or a noted reason to wait."""
    arrived = exists().where(UpdateRow.run_id == RunRow.id, UpdateRow.round == RunRow.round)
    open_step = exists().where(
        PublicStepRow.run_id == RunRow.id,
        PublicStepRow.round == RunRow.round,
        PublicStepRow.closed.is_(False),
    )
    silent = exists().where(
        *members.silent_in(RunRow.id, now() - timedelta(seconds=stalls.SILENT_SECONDS))
    )
    waits = or_(arrived, open_step, silent, RunRow.waiting_for.is_not(None))
    under_way = and_(RunRow.state.in_(ROUND_UNDER_WAY), waits)
    return select(RunRow.id).where(or_(RunRow.state == RunState.AGGREGATING, under_way))


async def _tried(services: Services, run: str, explain: bool) -> None:
    began = time.monotonic()
    try:
        await advance(services, run, explain)
        services.changes.polls.moved(run)
    except (Fenced, UnknownRun, WrongState) as error:
        # Another replica or the operator has moved or deleted the run meanwhile.
        log.info("advance given up", run=run, code=error.code, error=error.detail)
    except PubSwapError as error:
        log.warning("advance failed", run=run, code=error.code, error=error.detail)
        await _failed(services, run, error.detail)
    except Exception as error:
        # One run's failure must not stop the others; it is tried again.
        log.exception("advance failed", run=run)
        await _failed(services, run, f"{type(error).__name__}, see the coordinator's log.")
    # Rest briefly, so that several arrivals are handled in one pass.
    await asyncio.sleep(min(REST_SHARE * (time.monotonic() - began), MAX_REST_SECONDS))


async def _failed(services: Services, run: str, why: str) -> None:
    """Note why a run fails, once it has failed several times."""
    if not services.changes.polls.failed(run):
        return

    def note(session: Session) -> Notice | None:
        row = runs.by_id(session, run, lock=True)
        if row.state in ENDED:
            return None
        row.failure = f"Round {row.round} cannot go on: {why}"
        return stalls.note_stall(session, row, *_room(services))

    try:
        services.webhook.put(await services.database.write(note))
    except PubSwapError as error:
        log.warning("could not note the failure", run=run, error=error.detail)


async def advance(services: Services, run: str, explain: bool = True) -> None:
    """Close what is due, and average the round if it is closed and no other replica does.

    With `explain`, note why the run waits.
    """
    due, to_average = await _close(services, run, {}, explain)
    while due:
        summaries = await _summaries(services, run, due)
        due, to_average = await _close(services, run, summaries, explain)
    if to_average is not None:
        await services.heartbeats.flush()
        async with services.leases.held(services.database, to_average[0]):
            await _aggregate(services, *to_average)


_Work = tuple[list[exchanges.Step], tuple[Lease, RoundInputs] | None]
"""Work outside of a transaction: summaries of exchanges, or averaging the round."""


async def _close(
    services: Services, run: str, summaries: dict[exchanges.Step, PublicStepSummary], explain: bool
) -> _Work:
    timed = services.metrics.exchange_seconds.observe

    def work(session: Session) -> tuple[_Work, Notice | None]:
        row = session.get(RunRow, run, with_for_update=True)
        if row is None or row.state in ENDED:
            return ([], None), None
        if due := exchanges.close_due(session, row, summaries, timed):
            return (due, None), None
        rounds.close_if_due(session, row)
        _admit_if_short(session, row)
        if row.state != RunState.AGGREGATING:
            row.failure = None
        # Say at once that a run no longer waits.
        explained = explain or row.waiting_for is not None
        notice = stalls.note_stall(session, row, *_room(services)) if explained else None
        lease = services.leases.take(session, run) if row.state == RunState.AGGREGATING else None
        return ([], (lease, inputs_of(session, row, row.round)) if lease else None), notice

    done, notice = await services.database.write(work)
    services.webhook.put(notice)
    return done


def _admit_if_short(session: Session, run: RunRow) -> None:
    """Admit members that came mid-round at once, if the round cannot close without them."""
    if run.state not in ROUND_UNDER_WAY or not members.joining(session, run.id):
        return
    open_rows = exchanges.open_rows(session, run)
    arrivals = [exchanges.arrivals(session, run, row) for row in open_rows]
    if any(each.missing for each in [rounds.arrivals(session, run), *arrivals]):
        members.admit(session, run.id)


async def _summaries(
    services: Services, run: str, due: list[exchanges.Step]
) -> dict[exchanges.Step, PublicStepSummary]:
    """The summaries of these exchanges, with the members that have answered so far."""
    summaries = {}
    for step in due:
        read = partial(exchanges.answered, run=run, step=step)
        strategy, pool = await services.database.read(read)
        if pool.correct:  # empty if all were withdrawn meanwhile
            summary = await to_thread.run_sync(exchanges.summary_of, strategy, pool)
            summaries[step] = summary
    return summaries


def _room(services: Services) -> tuple[int | None, int]:
    return services.blobs.free_bytes(), services.settings.spare_bytes


async def _aggregate(services: Services, lease: Lease, inputs: RoundInputs) -> None:
    run = lease.run
    started = time.monotonic()
    result = await to_thread.run_sync(aggregate_round, inputs, services.blobs)
    services.metrics.aggregation_seconds.observe(time.monotonic() - started)

    def publish(session: Session) -> tuple[float, list[Notice]]:
        row = runs.by_id(session, run, lock=True)
        services.leases.give_back(session, lease)
        if row.state != RunState.AGGREGATING or inputs_of(session, row, row.round) != inputs:
            raise WrongState(f"Run {run} moved on while round {inputs.round} was averaged.")
        done = session.get_one(RoundRow, (run, inputs.round))
        done.adapter = result.adapter
        counted = rounds.counted_updates(session, row, inputs.round)
        done.means = history.means_of(session, run, inputs.round, counted).model_dump(mode="json")
        done.drift = result.drift.model_dump(mode="json")
        done.server_state = result.server_state
        for update in counted:
            if (steps := update.metrics["steps"]) < inputs.settings.local_steps:
                details = {"member": update.member, "round": inputs.round, "steps": steps}
                events.record(session, run, "fewer steps", **details)
        for line in result.log:
            events.record(session, run, line.kind, round=inputs.round, **line.details)
        began = events.last_at(session, run, ROUND_BEGINS)
        runs.move(session, row, aggregated, adapter=result.adapter)
        if keep := services.settings.keep_rounds:
            retention.free_through(session, run, inputs.round - keep)
        notices = [
            stalls.of_an_update_that_stands_out(row, inputs.round, line.details)
            for line in result.log
            if line.kind == STANDS_OUT
        ]
        if row.waiting_for is not None and row.state not in ENDED:
            row.failure = None
            if stall := stalls.note_stall(session, row, *_room(services)):
                notices.append(stall)
        if row.state == RunState.FINISHED:
            words = f"The run has ended with round {row.round}."
            notices.append(Notice(run, row.name, "finished", words))
        return (now() - began).total_seconds(), notices

    seconds, notices = await services.database.write(publish)
    for notice in notices:
        services.webhook.put(notice)
    services.metrics.round_seconds.observe(seconds)
    log.info("round published", run=run, round=inputs.round, adapter=result.adapter)
