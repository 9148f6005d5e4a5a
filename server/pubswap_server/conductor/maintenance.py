"""What runs beside the conductor: damaged blobs are dealt with, and leftovers swept."""

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import structlog
from anyio import to_thread
from sqlalchemy import Column, String, or_, select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import DamagedBlob, PubSwapError
from pubswap_protocol.messages import RunState
from pubswap_protocol.tensors.adapter import initial_file
from pubswap_server.conductor.conductor import Aggregation, inputs_of, made_of
from pubswap_server.database.tables import (
    Base,
    BlobRow,
    RoundRow,
    RunRow,
    SubmissionRow,
    UpdateRow,
    UploadRow,
)
from pubswap_server.runs import runs, uploads
from pubswap_server.runs.events import record
from pubswap_server.runs.state import ENDED, reopened
from pubswap_server.services import Services
from pubswap_server.storage.store import BlobStore


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


def made_again(blobs: BlobStore, run: RunRow, inputs: Aggregation | None) -> str:
    """Make a round's outcome once more; returns the adapter's digest.

    `inputs` is None for round 0, whose adapter comes from the seed alone. Raises DamagedBlob
    if what it is made of is lost too.
    """
    if inputs is not None:
        return made_of(blobs, inputs).adapter
    layout = runs.model_of(run).layout
    return blobs.write(initial_file(layout, runs.settings_of(run).seed))[0]


_DIGEST_LENGTH = 71
# What a member said that it sent. What is stored of it is named beside it, and may be freed; but an
# upload's bytes may be a blob a moment before the row that names that.
ANNOUNCED = frozenset({("blobs", "digest"), ("updates", "digest"), ("submissions", "digest")})


def digest_columns() -> Iterator[Column[Any]]:
    """The columns that hold digests, found by their type, so that none is forgotten."""
    for table in Base.metadata.sorted_tables:
        for column in table.columns:
            if isinstance(column.type, String) and column.type.length == _DIGEST_LENGTH:
                yield column


def naming_columns() -> Iterator[Column[Any]]:
    """The columns that name blobs which must not be removed."""
    return (c for c in digest_columns() if (c.table.name, c.name) not in ANNOUNCED)


def named_digests(session: Session) -> set[str]:
    """Every blob that a row names."""
    digests: set[str] = set()
    for column in naming_columns():
        digests.update(session.scalars(select(column).where(column.is_not(None))))
    return digests


def open_uploads(session: Session) -> set[str]:
    """The ids of all sessions."""
    return set(session.scalars(select(UploadRow.id)))


def old_enough(modified: float, seconds: float) -> bool:
    """Whether something untouched since `modified` may be an orphan.

    A blob is on the disk a moment before the transaction that names it, so that a young one is
    left alone.
    """
    return time.time() - modified > seconds


log = structlog.get_logger(__name__)

ORPHAN_SECONDS = 600.0  # then a blob that nothing names is removed; also the time between sweeps


async def keep_house(services: Services) -> None:
    """For ever: look for damage at every tick, and sweep at the start and each ten minutes."""
    swept = -ORPHAN_SECONDS
    while True:
        try:
            await heal(services)
            if time.monotonic() - swept >= ORPHAN_SECONDS:
                await sweep(services)
                swept = time.monotonic()
        except Exception:
            # A full disk or an absent database now must not end this for good.
            log.exception("housekeeping failed")
        await asyncio.sleep(services.settings.tick_seconds)


async def heal(services: Services) -> None:
    """Withdraw what relied on blobs that were found damaged."""
    for digest in sorted(services.blobs.take_damaged()):
        try:
            # Another replica may have seen to it, and the blob have been sent again.
            await to_thread.run_sync(services.blobs.path, digest)
            continue
        except DamagedBlob as error:
            log.error("blob damaged", digest=digest, error=error.detail)
        await to_thread.run_sync(services.blobs.set_aside, digest)
        for run, round_ in await services.database.write(partial(withdraw, digest=digest)):
            await _make_again(services, run, round_)


async def _make_again(services: Services, run: str, round_: int) -> None:
    def look(session: Session) -> tuple[RunRow, Aggregation | None, str]:
        row = session.get_one(RunRow, run)
        inputs = inputs_of(session, row, round_) if round_ else None
        wanted = session.get_one(RoundRow, (run, round_)).adapter
        assert wanted is not None  # or nothing of it was stored
        return row, inputs, wanted

    try:
        row, inputs, wanted = await services.database.read(look)
        made = await to_thread.run_sync(made_again, services.blobs, row, inputs)
    except PubSwapError as error:
        log.error("round cannot be made again", run=run, round=round_, error=error.detail)
        return
    if made != wanted:
        log.error("round came out differently", run=run, round=round_, adapter=made, was=wanted)
        return
    log.info("round made again", run=run, round=round_, adapter=made)


async def sweep(services: Services) -> None:
    """Remove expired uploads, and blobs that nothing has named for a while."""
    for upload in await services.database.write(uploads.take_expired):
        await to_thread.run_sync(services.uploads.drop, upload)
    # Listed before the rows are read: what is named in between is then not taken for an orphan.
    blobs = await to_thread.run_sync(lambda: list(services.blobs.blobs()))
    parts = await to_thread.run_sync(lambda: list(services.uploads.uploads()))
    named = await services.database.read(named_digests)
    sessions = await services.database.read(open_uploads)
    for blob in blobs:
        if blob.name not in named and old_enough(blob.modified, ORPHAN_SECONDS):
            await to_thread.run_sync(
                services.blobs.remove_older, blob.name, time.time() - ORPHAN_SECONDS
            )
            log.info("orphan removed", digest=blob.name, bytes=blob.size)
    for part in parts:
        if part.name not in sessions and old_enough(part.modified, ORPHAN_SECONDS):
            await to_thread.run_sync(services.uploads.drop, part.name)
