"""Damaged blobs: what can be sent again is asked for, what follows from others is made again."""

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from pubswap_protocol.adapter import initial_file
from pubswap_protocol.digests import algorithm_of
from pubswap_protocol.messages import RunState
from pubswap_server import runs
from pubswap_server.conductor import Aggregation, made_of
from pubswap_server.events import record
from pubswap_server.state import ENDED, reopened
from pubswap_server.storage.store import BlobStore
from pubswap_server.tables import BlobRow, RoundRow, RunRow, SubmissionRow, UpdateRow


def withdraw(session: Session, digest: str) -> list[tuple[str, int]]:
    """Take back every receipt that relied on a blob, so that its sender is asked again.

    Returns the rounds (run, round) whose outcome it was.

    An update of the round under way is asked for again from its client, which still has it. An
    exchange goes on without the responses; their sender trains on its own. What a round ended with
    is made again from its updates, see `made_again`.
    """
    _withdraw_updates(session, digest)
    for submission in session.scalars(select(SubmissionRow).where(SubmissionRow.stored == digest)):
        _note(session, submission.run_id, digest, f"responses of {submission.member}")
        submission.late, submission.stored = True, None
    for blob in session.scalars(select(BlobRow).where(BlobRow.canonical == digest)):
        _note(session, blob.run_id, digest, f"blob of {blob.member}")
        session.delete(blob)
    made = or_(
        RoundRow.adapter == digest, RoundRow.residual == digest, RoundRow.server_state == digest
    )
    rounds = []
    for row in session.scalars(select(RoundRow).where(made)):
        _note(session, row.run_id, digest, f"outcome of round {row.round}")
        rounds.append((row.run_id, row.round))
    return rounds


def _withdraw_updates(session: Session, digest: str) -> None:
    for update in session.scalars(select(UpdateRow).where(UpdateRow.canonical == digest)):
        run = session.get_one(RunRow, update.run_id, with_for_update=True)
        _note(session, run.id, digest, f"update of {update.member} in round {update.round}")
        if update.round != run.round or run.state in ENDED:
            continue
        session.delete(update)
        if run.state == RunState.AGGREGATING:
            runs.move(session, run, reopened)


def _note(session: Session, run: str, digest: str, what: str) -> None:
    record(session, run, "blob damaged", digest=digest, what=what)


def made_again(blobs: BlobStore, run: RunRow, inputs: Aggregation | None, wanted: str) -> str:
    """Make a round's outcome once more; returns the adapter's digest, which must be `wanted`.

    `inputs` is None for round 0, whose adapter comes from the seed alone. Raises DamagedBlob
    if what it is made of is lost too.
    """
    if inputs is not None:
        return made_of(blobs, inputs).adapter
    layout = runs.model_of(run).layout
    return blobs.write(initial_file(layout, runs.settings_of(run).seed), algorithm_of(wanted))[0]
