"""A round: the updates it takes, and when it closes."""

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import (
    IdempotencyMismatch,
    NotFound,
    RoundClosed,
    UnknownBlob,
    WrongState,
)
from pubswap_protocol.messages import (
    Receipt,
    ReceiptStatus,
    RunState,
    SubmitUpdate,
)
from pubswap_server.database.tables import BlobRow, RunRow, UpdateRow, now
from pubswap_server.runs import members, runs
from pubswap_server.runs.auth import MemberPrincipal, require_going
from pubswap_server.runs.events import record
from pubswap_server.runs.quorum import Turnout, closes
from pubswap_server.runs.state import ROUND_UNDER_WAY, reconsidered, updates_closed


def submit(
    session: Session, run: RunRow, member: MemberPrincipal, round_: int, wanted: SubmitUpdate
) -> Receipt:
    """Take a member's update.

    Sent again, it gets the same receipt; a round that is closed stores it as late, also without its
    adapter. Raises IdempotencyMismatch for another adapter than before, UnknownBlob for one that
    was not sent, RoundClosed for a round that has not begun, RunCancelled.
    """
    require_going(run.state == RunState.CANCELLED)
    blob = session.get(BlobRow, (run.id, wanted.adapter, member.name)) or session.scalar(
        select(BlobRow).where(
            BlobRow.run_id == run.id,
            BlobRow.canonical == wanted.adapter,
            BlobRow.member == member.name,
        )
    )
    before = session.get(UpdateRow, (run.id, round_, member.name))
    if before is not None:
        same = {before.digest, before.canonical}
        if wanted.adapter not in same and (blob is None or blob.canonical not in same):
            raise IdempotencyMismatch(f"Your update for round {round_} was another adapter.")
        return _receipt(before)
    if not 1 <= round_ <= run.round:
        raise RoundClosed(f"Round {round_} is not under way; the run is in round {run.round}.")
    late = round_ < run.round or run.state not in ROUND_UNDER_WAY
    if blob is None and not late:
        raise UnknownBlob(f"PUT the adapter {wanted.adapter} as a blob first.")
    row = UpdateRow(
        run_id=run.id,
        round=round_,
        member=member.name,
        digest=wanted.adapter,
        canonical=blob.canonical if blob is not None else None,
        metrics=wanted.metrics.model_dump(mode="json"),
        late=late,
    )
    session.add(row)
    record(session, run.id, "update", member=member.name, round=round_, late=row.late)
    return _receipt(row)


def _receipt(row: UpdateRow) -> Receipt:
    status = ReceiptStatus.LATE if row.late else ReceiptStatus.ACCEPTED
    return Receipt(status=status, digest=row.digest)


def taken(session: Session, run: RunRow, round_: int) -> list[UpdateRow]:
    """The updates of a round that count, in the order of the members' names."""
    rows = session.scalars(
        select(UpdateRow).where(
            UpdateRow.run_id == run.id, UpdateRow.round == round_, UpdateRow.late.is_(False)
        )
    )
    return sorted(rows, key=lambda row: row.member)


def exclude(session: Session, run: RunRow, round_: int, member: str) -> None:
    """Leave a member's update out of the round under way, as if it had come too late.

    A round that is closed takes updates again. Raises WrongState for another round, NotFound if
    the member has handed in nothing.
    """
    reconsidered(runs.status_of(run))
    if round_ != run.round:
        raise WrongState(f"Round {run.round} is under way; an update of it can be excluded.")
    row = session.get(UpdateRow, (run.id, round_, member))
    if row is None:
        raise NotFound(f"{member} has handed in no update of round {round_}.")
    if row.late:
        return
    row.late = True
    run.failure = None
    record(session, run.id, "excluded by operator", member=member, round=round_)
    runs.move(session, run, reconsidered)


def _in_time(run: RunRow) -> tuple[ColumnElement[bool], ...]:
    return (
        UpdateRow.run_id == run.id,
        UpdateRow.round == run.round,
        UpdateRow.late.is_(False),
    )


def arrived(run: RunRow) -> Select[str]:
    """Who has handed in an update of the round under way, whether it counts or not."""
    return select(UpdateRow.member).where(UpdateRow.run_id == run.id, UpdateRow.round == run.round)


def turnout(session: Session, run: RunRow) -> Turnout:
    """How many updates of the round under way count, and how many may still come."""
    query = select(func.count(), func.min(UpdateRow.received_at)).where(*_in_time(run))
    count, first_at = session.execute(query).one()
    return Turnout(count, members.outstanding(session, run.id, arrived(run)), first_at)


def close_if_due(session: Session, run: RunRow) -> bool:
    """Stop taking updates when all are in, or a quorum is and the deadline has passed.

    Returns whether it did.
    """
    if run.state not in ROUND_UNDER_WAY or run.paused:
        return False
    found, rules = turnout(session, run), runs.settings_of(run).aggregation
    due = closes(found, rules.quorum, rules.deadline_seconds, now())
    if due:
        runs.move(session, run, updates_closed, updates=found.arrived)
    return due
