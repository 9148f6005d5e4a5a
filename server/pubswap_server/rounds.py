"""A round: the updates it takes, and when it closes."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import IdempotencyMismatch, RoundClosed, UnknownBlob
from pubswap_protocol.messages import (
    Receipt,
    ReceiptStatus,
    RunState,
    SubmitUpdate,
)
from pubswap_server import members, runs
from pubswap_server.auth import Member, require_going
from pubswap_server.closing import closes
from pubswap_server.events import record
from pubswap_server.state import ROUND_UNDER_WAY, updates_closed
from pubswap_server.tables import BlobRow, RunRow, UpdateRow, now


def submit(
    session: Session, run: RunRow, member: Member, round_: int, wanted: SubmitUpdate
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


def close_if_due(session: Session, run: RunRow) -> bool:
    """Stop taking updates when all are in, or a quorum is and the deadline has passed.

    Returns whether it did.
    """
    if run.state not in ROUND_UNDER_WAY or run.paused:
        return False
    updates, rules = taken(session, run, run.round), runs.settings_of(run).aggregation
    due = closes(
        expected=members.active_clients(session, run.id),
        arrived={row.member for row in updates},
        quorum=rules.quorum,
        first_at=min((row.received_at for row in updates), default=None),
        deadline_seconds=rules.deadline_seconds,
        now=now(),
    )
    if due:
        runs.move(session, run, updates_closed, updates=len(updates))
    return due
