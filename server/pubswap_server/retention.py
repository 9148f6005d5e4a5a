"""How long a run keeps what its members sent: the rows for ever, the files for some rounds.

A file that no row names any more is freed: sweeping removes it.
"""

from sqlalchemy import delete, update
from sqlalchemy.orm import Session

from pubswap_server.tables import BlobRow, SubmissionRow, UpdateRow, UploadRow


def free_unused(session: Session, run: str, ended: bool) -> None:
    """Free the adapters that no update names, once a round is over; what is under way may come.

    With the run's end, no more of them may.
    """
    session.execute(delete(BlobRow).where(BlobRow.run_id == run))
    if ended:
        session.execute(delete(UploadRow).where(UploadRow.run_id == run))


def free_through(session: Session, run: str, round_: int) -> None:
    """Free the updates and responses of the rounds up to this one."""
    session.execute(
        update(UpdateRow)
        .where(UpdateRow.run_id == run, UpdateRow.round <= round_)
        .where(UpdateRow.canonical.is_not(None))
        .values(canonical=None)
    )
    session.execute(
        update(SubmissionRow)
        .where(SubmissionRow.run_id == run, SubmissionRow.round <= round_)
        .where(SubmissionRow.stored.is_not(None))
        .values(stored=None)
    )
