"""Retention of what members sent: rows are kept forever, files for some rounds.

A file is freed when no row names it any more; the sweep then removes it.
"""

from contextlib import suppress

from sqlalchemy import delete, update
from sqlalchemy.orm import Session

from pubswap_protocol.errors import NotFound, WrongState
from pubswap_server.database.tables import (
    Base,
    BlobRow,
    RoundRow,
    RunRow,
    SubmissionRow,
    UpdateRow,
    UploadRow,
)
from pubswap_server.runs import history
from pubswap_server.runs.events import record
from pubswap_server.runs.state import ENDED

_DELETED = "deleted"  # the triggers of `EventRow` then let the run's log be deleted


def free_unused(session: Session, run: str, ended: bool) -> None:
    """Free the adapters that no update names, once a round is over.

    Uploads under way may go on, unless the run has `ended`.
    """
    session.execute(delete(BlobRow).where(BlobRow.run_id == run))
    if ended:
        session.execute(delete(UploadRow).where(UploadRow.run_id == run))


def free_through(session: Session, run: str, round_: int) -> None:
    """Free the updates and responses of the rounds up to this one."""
    for table in (UpdateRow, SubmissionRow):
        old = table.run_id == run, table.round <= round_, table.stored.is_not(None)
        session.execute(update(table).where(*old).values(stored=None))


def archive(session: Session, run: RunRow) -> None:
    """Free all files of an ended run except its final and its best adapter.

    Its rows stay. Raises WrongState.
    """
    _require_ended(run, "archived")
    retained = set()
    for which in ("final", "best"):
        with suppress(NotFound):
            retained.add(history.chosen(session, run.id, which)[0])
    free_through(session, run.id, run.round)
    rounds = update(RoundRow).where(RoundRow.run_id == run.id)
    session.execute(rounds.values(server_state=None))
    freed = session.scalars(
        rounds.where(RoundRow.round.not_in(retained), RoundRow.adapter.is_not(None))
        .values(adapter=None)
        .returning(RoundRow.round)
    ).all()
    if freed:
        record(
            session, run.id, "archived", adapters_freed=len(freed), adapters_kept=sorted(retained)
        )


def delete_run(session: Session, run: RunRow) -> None:
    """Delete an ended run with all its rows; raises WrongState."""
    _require_ended(run, "deleted")
    run.state = _DELETED
    session.flush()
    for table in reversed(Base.metadata.sorted_tables):
        if "run_id" in table.columns:
            session.execute(delete(table).where(table.columns.run_id == run.id))
    session.delete(run)


def _require_ended(run: RunRow, what: str) -> None:
    if run.state not in ENDED:
        raise WrongState(f"The run is {run.state}; only one that has ended can be {what}.")
