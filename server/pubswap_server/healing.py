"""Damaged blobs: what can be sent again is asked for, what follows from others is made again."""

from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.orm import Session

from pubswap_protocol.messages import RunState
from pubswap_server import runs
from pubswap_server.events import record
from pubswap_server.state import ENDED, reopened
from pubswap_server.tables import BlobRow, RoundRow, RunRow, SubmissionRow, UpdateRow


@dataclass
class Loss:
    """What a damaged blob was, beyond what is asked for again: global adapters, by run."""

    runs: set[str] = field(default_factory=set)
    adapters: list[tuple[str, int]] = field(default_factory=list)  # run, round


def withdraw(session: Session, digest: str) -> Loss:
    """Take back every receipt that relied on a blob, so that its sender is asked again.

    An update of the round under way is asked for again from its client, which still has it. An
    exchange goes on without the responses; their sender trains on its own. Global adapters are
    returned, for they are made again from their round's updates.
    """
    loss = Loss()
    _withdraw_updates(session, digest, loss)
    for submission in session.scalars(select(SubmissionRow).where(SubmissionRow.digest == digest)):
        loss.runs.add(submission.run_id)
        _note(session, submission.run_id, digest, f"responses of {submission.member}")
        submission.late = True
    for blob in session.scalars(select(BlobRow).where(BlobRow.canonical == digest)):
        loss.runs.add(blob.run_id)
        _note(session, blob.run_id, digest, f"blob of {blob.member}")
        session.delete(blob)
    for row in session.scalars(select(RoundRow).where(RoundRow.adapter == digest)):
        _note(session, row.run_id, digest, f"global adapter of round {row.round}")
        loss.adapters.append((row.run_id, row.round))
        loss.runs.add(row.run_id)
    return loss


def _withdraw_updates(session: Session, digest: str, loss: Loss) -> None:
    for update in session.scalars(select(UpdateRow).where(UpdateRow.canonical == digest)):
        run = session.get_one(RunRow, update.run_id, with_for_update=True)
        loss.runs.add(run.id)
        _note(session, run.id, digest, f"update of {update.member} in round {update.round}")
        if update.round != run.round or run.state in ENDED:
            continue
        session.delete(update)
        if run.state == RunState.AGGREGATING:
            runs.move(session, run, reopened)


def _note(session: Session, run: str, digest: str, what: str) -> None:
    record(session, run, "blob damaged", digest=digest, what=what)
