"""Rounds: their updates, their closing, and rollbacks to earlier ones."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import ColumnElement, Select, delete, func, select, update
from sqlalchemy.orm import Session

from pubswap_protocol.errors import (
    IdempotencyMismatch,
    InvalidUpdate,
    NotFound,
    RoundClosed,
    UnknownBlob,
    WrongState,
)
from pubswap_protocol.messages import Receipt, RunState, SubmitUpdate
from pubswap_protocol.settings import RunSettings
from pubswap_server.clock import now
from pubswap_server.database.tables import (
    BlobRow,
    PublicStepRow,
    RoundRow,
    RunRow,
    StepRow,
    SubmissionRow,
    UpdateRow,
)
from pubswap_server.exchange import doubts
from pubswap_server.exchange.exchanges import receipt_of
from pubswap_server.runs import members, retention, runs
from pubswap_server.runs.auth import MemberPrincipal, require_going
from pubswap_server.runs.events import details_since, record
from pubswap_server.runs.quorum import Arrivals
from pubswap_server.runs.state import (
    ROUND_UNDER_WAY,
    reconsidered,
    resumed,
    rolled_back,
    updates_closed,
)


def submit(
    session: Session,
    run: RunRow,
    member: MemberPrincipal,
    round_: int,
    request: SubmitUpdate,
    received: Mapping[str, int],
    start: str | None = None,
    rollbacks: int | None = None,
) -> Receipt:
    """Take a member's update.

    If given, `start` is the adapter from which it was trained, and `rollbacks` the run's count at
    that time. `received` counts the responses that it got in the round, by donor.

    A repetition gets the same receipt. A closed round stores the update as late, even without its
    adapter. Raises IdempotencyMismatch for another adapter than before, UnknownBlob for one that
    was not sent, InvalidUpdate for a number of steps that the run does not take, RoundClosed for a
    round that has not begun or was begun again after a rollback, RunCancelled, RunPaused.
    """
    require_going(run.state == RunState.CANCELLED)
    blob = session.get(BlobRow, (run.id, request.adapter, member.name))
    existing = session.get(UpdateRow, (run.id, round_, member.name))
    if existing is not None:
        if request.adapter != existing.digest:
            raise IdempotencyMismatch(f"You have handed in another adapter for round {round_}.")
        return receipt_of(existing)
    if not 1 <= round_ <= run.round:
        raise RoundClosed(f"Round {round_} is not under way; the run is in round {run.round}.")
    _check_steps(run.settings, request.metrics.steps)
    late = round_ < run.round or run.state not in ROUND_UNDER_WAY
    previous = session.get_one(RoundRow, (run.id, round_ - 1))
    if start not in (None, previous.adapter) and not late:
        raise RoundClosed(f"The run went back; now round {round_} begins from another adapter.")
    if not late:
        runs.require_since(run, rollbacks)
    runs.require_resumed(run)
    if blob is None and not late:
        raise UnknownBlob(f"PUT the adapter {request.adapter} as a blob first.")
    row = UpdateRow(
        run_id=run.id,
        round=round_,
        member=member.name,
        digest=request.adapter,
        stored=request.adapter if blob is not None else None,
        metrics=request.metrics.model_dump(mode="json"),
        late=late,
    )
    session.add(row)
    doubts.report(session, run, member.name, round_, request.metrics.donors, received)
    record(session, run.id, "update", member=member.name, round=round_, late=row.late)
    if refused := request.metrics.exchanges_refused:
        details = {"member": member.name, "round": round_}
        record(session, run.id, "exchanges refused", **details, exchanges=refused)
    return receipt_of(row)


def _check_steps(settings: RunSettings, steps: int) -> None:
    """Raises InvalidUpdate for fewer or more local steps than the run takes."""
    fewest = settings.members.fewest_steps or settings.local_steps
    if fewest <= steps <= settings.local_steps:
        return
    all_ = f"all {settings.local_steps}; fewer are for runs with members.fewest_steps"
    some = f"{fewest} (members.fewest_steps) to {settings.local_steps}"
    raise InvalidUpdate(
        f"Your update was made of {steps} local steps; the run takes "
        f"{all_ if settings.members.fewest_steps is None else some}."
    )


def counted_updates(session: Session, run: RunRow, round_: int) -> list[UpdateRow]:
    """The updates of a round that count, in the order of the members' names."""
    rows = session.scalars(select(UpdateRow).where(*_in_time(run, round_)))
    return sorted(rows, key=lambda row: row.member)


def exclude(session: Session, run: RunRow, round_: int, member: str) -> None:
    """Leave a member's update out of the round under way, as if it had come too late.

    A closed round takes updates again. An update that is left out already stays so: the round may
    have ended before the request was repeated. Raises WrongState for another round, NotFound if the
    member has handed in nothing.
    """
    row = session.get(UpdateRow, (run.id, round_, member))
    if row is not None and row.late:
        return
    reconsidered(runs.status_of(run))
    if round_ != run.round:
        raise WrongState(f"Round {run.round} is under way; only its updates can be excluded.")
    if row is None:
        raise NotFound(f"{member} has handed in no update of round {round_}.")
    row.late = True
    run.failure = None
    record(session, run.id, "excluded by operator", member=member, round=round_)
    reopen(session, run, reconsidered)


def reopen(session: Session, run: RunRow, transition: runs.Move) -> None:
    """Take updates of the round again if it was closed.

    Those that came meanwhile are forgotten, so that their members hand them in again.
    """
    if run.state == RunState.AGGREGATING:
        late = [
            each["member"]
            for each in details_since(session, run.id, "update", "updates closed")
            if each["round"] == run.round
        ]
        of_them = UpdateRow.member.in_(late)
        where = UpdateRow.run_id == run.id, UpdateRow.round == run.round, of_them
        session.execute(delete(UpdateRow).where(*where))
    runs.move(session, run, transition)


def _in_time(run: RunRow, round_: int) -> tuple[ColumnElement[bool], ...]:
    return UpdateRow.run_id == run.id, UpdateRow.round == round_, UpdateRow.late.is_(False)


def arrived(run: RunRow) -> Select[str]:
    """The members with an update in the round under way, whether it counts or not."""
    return select(UpdateRow.member).where(UpdateRow.run_id == run.id, UpdateRow.round == run.round)


def arrivals(session: Session, run: RunRow) -> Arrivals:
    query = select(func.count(), func.min(UpdateRow.received_at)).where(*_in_time(run, run.round))
    count, first_at = session.execute(query).one()
    deadline = run.settings.aggregation.deadline_seconds
    outstanding, unheard = members.expected(session, run.id, arrived(run), deadline)
    return arrivals_of(run, count, outstanding, first_at, unheard)


def arrivals_of(
    run: RunRow, arrived: int, outstanding: int, first_at: datetime | None, unheard: int = 0
) -> Arrivals:
    rules, minimum = run.settings.aggregation, run.settings.members.minimum
    return Arrivals.of(rules, minimum, arrived, outstanding, first_at, unheard)


def close_if_due(session: Session, run: RunRow) -> None:
    """Stop taking updates when all are in, or when a quorum is and the deadline has passed."""
    if run.state not in ROUND_UNDER_WAY or run.paused:
        return
    present = arrivals(session, run)
    if present.closes(now()):
        runs.move(session, run, updates_closed, updates=present.arrived)


def resume(session: Session, run: RunRow) -> None:
    """Give out work again, and take what members have held.

    Deadlines count from now at the earliest, because nobody could send anything during the pause.
    """
    if run.paused:
        in_time = _in_time(run, run.round)
        session.execute(update(UpdateRow).where(*in_time).values(received_at=now()))
        begun = PublicStepRow.run_id == run.id, PublicStepRow.round == run.round
        session.execute(update(PublicStepRow).where(*begun).values(first_at=now()))
    runs.move(session, run, resumed)


def roll_back(session: Session, run: RunRow, to: int) -> None:
    """Begin round `to` + 1 again from round `to`'s adapter and optimizer state.

    Everything since is deleted except the log, which keeps the rounds' adapters and evaluations.
    Raises WrongState for a round that is not before the one under way, NotFound if its adapter was
    freed.
    """
    status = rolled_back(runs.status_of(run), to)
    start = session.get(RoundRow, (run.id, to))
    if start is None or start.adapter is None:
        raise NotFound(f"Round {to} has no adapter to go back to.")
    later = select(RoundRow).where(RoundRow.run_id == run.id, RoundRow.round > to)
    rounds = [
        {"round": row.round, "adapter": row.adapter, "evaluation": row.evaluation}
        for row in session.scalars(later.order_by(RoundRow.round))
        if row.adapter is not None
    ]
    record(session, run.id, "rolled back", to=to, adapter=start.adapter, rounds=rounds)
    for table in (UpdateRow, SubmissionRow, PublicStepRow, StepRow, RoundRow):
        session.execute(delete(table).where(table.run_id == run.id, table.round > to))
    run.state, run.round, run.failure = status.state, status.round, None
    run.rollbacks += 1
    members.begin_round(session, run.id)
    session.add(RoundRow(run_id=run.id, round=run.round))
    session.flush()
    retention.free_unused(session, run.id, ended=False)
