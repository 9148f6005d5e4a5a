"""Maintenance beside the conductor: withdraw damaged blobs, sweep leftovers."""

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import structlog
from anyio import to_thread
from sqlalchemy import Column, String, or_, select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import PubSwapError
from pubswap_protocol.messages import RunState
from pubswap_protocol.tensors.adapter import initial_file
from pubswap_server.conductor.inputs import RoundInputs, aggregate_round, inputs_of
from pubswap_server.database.tables import (
    Base,
    BlobRow,
    RoundRow,
    RunRow,
    SetRow,
    SubmissionRow,
    UpdateRow,
    UploadRow,
)
from pubswap_server.runs import runs, uploads
from pubswap_server.runs.events import INPUT_DAMAGED, damaged_input, record
from pubswap_server.runs.state import ENDED, reopened
from pubswap_server.services import Services
from pubswap_server.storage.store import BlobStore

log = structlog.get_logger(__name__)

ORPHAN_SECONDS = 600.0  # then a blob that nothing names is removed; also the time between sweeps
_DIGEST_LENGTH = 71
# What a member said that it sent. What is stored of it is named beside it, and may be freed; but an
# upload's bytes may be a blob a moment before the row that names that.
ANNOUNCED = frozenset({("updates", "digest"), ("submissions", "digest")})


def withdraw(session: Session, digest: str) -> list[tuple[str, int]]:
    """Take back every receipt that relied on a blob, so that its sender is asked again.

    Returns the rounds (run, round) whose outcome it was.

    An update of the round under way is asked for again from its client, which still has it. An
    exchange goes on without the responses; their sender trains on its own. What a round ended with
    is computed again from its updates, see `recompute`. What the run itself was made of is the
    operator's to put back.
    """
    for update in session.scalars(select(UpdateRow).where(UpdateRow.stored == digest)):
        run = session.get_one(RunRow, update.run_id, with_for_update=True)
        _note(session, run.id, digest, f"update of {update.member} in round {update.round}")
        if update.round == run.round and run.state not in ENDED:
            session.delete(update)
            if run.state == RunState.AGGREGATING:
                runs.move(session, run, reopened)
    for submission in session.scalars(select(SubmissionRow).where(SubmissionRow.stored == digest)):
        _note(session, submission.run_id, digest, f"responses of {submission.member}")
        submission.late, submission.stored = True, None
    for blob in session.scalars(select(BlobRow).where(BlobRow.digest == digest)):
        _note(session, blob.run_id, digest, f"blob of {blob.member}")
        session.delete(blob)
    outcome = or_(
        RoundRow.adapter == digest, RoundRow.residual == digest, RoundRow.server_state == digest
    )
    rounds = []
    for row in session.scalars(select(RoundRow).where(outcome)):
        _note(session, row.run_id, digest, f"outcome of round {row.round}")
        rounds.append((row.run_id, row.round))
    for some in session.scalars(select(SetRow).where(SetRow.digest == digest)):
        _note_input(session, some.run_id, digest, f"{some.kind} problems")
    for run_id in session.scalars(select(RunRow.id).where(RunRow.tokenizer == digest)):
        _note_input(session, run_id, digest, "tokenizer")
    return rounds


def _note_input(session: Session, run: str, digest: str, what: str) -> None:
    if damaged_input(session, run) is None:  # it is found again at every use
        record(session, run, INPUT_DAMAGED, digest=digest, what=what)


def _note(session: Session, run: str, digest: str, what: str) -> None:
    record(session, run, "blob damaged", digest=digest, what=what)


def recompute(
    run: RunRow, inputs: RoundInputs | None, blobs: BlobStore, into: BlobStore | None = None
) -> str:
    """Compute a round's outcome once more; returns the adapter's digest.

    `inputs` is None for round 0, whose adapter comes from the seed alone. Raises DamagedBlob
    if one of them is lost too.
    """
    if inputs is not None:
        return aggregate_round(inputs, blobs, into).adapter
    parts = initial_file(runs.model_of(run).layout, runs.settings_of(run).seed)
    return (into or blobs).write(parts)[0]


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
    digests: set[str] = set()
    for column in naming_columns():
        digests.update(session.scalars(select(column).where(column.is_not(None))))
    return digests


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
        # Another replica may have seen to it, and the blob have been sent again.
        if not await to_thread.run_sync(services.blobs.set_aside, digest):
            continue
        log.error("blob damaged or missing", digest=digest)
        for run, round_ in await services.database.write(partial(withdraw, digest=digest)):
            await _make_again(services, run, round_)


async def _make_again(services: Services, run: str, round_: int) -> None:
    def read(session: Session) -> tuple[RunRow, RoundInputs | None, str | None]:
        row = runs.by_id(session, run)
        inputs = inputs_of(session, row, round_) if round_ else None
        return row, inputs, session.get_one(RoundRow, (run, round_)).adapter

    try:
        row, inputs, lost = await services.database.read(read)
        again = await to_thread.run_sync(recompute, row, inputs, services.blobs)
    except PubSwapError as error:
        log.error("round cannot be made again", run=run, round=round_, error=error.detail)
        return
    if again != lost:
        log.error("round came out differently", run=run, round=round_, adapter=again, was=lost)
        return
    log.info("round made again", run=run, round=round_, adapter=again)


async def sweep(services: Services) -> None:
    for upload in await services.database.write(uploads.take_expired):
        await to_thread.run_sync(services.uploads.drop, upload)
    # Listed before the rows are read: what is named in between is then not taken for an orphan.
    blobs = await to_thread.run_sync(lambda: list(services.blobs.blobs()))
    parts = await to_thread.run_sync(lambda: list(services.uploads.uploads()))
    named = await services.database.read(named_digests)
    sessions = await services.database.read(
        lambda session: {row.id: row.size for row in session.scalars(select(UploadRow))}
    )
    # A blob is on the disk a moment before the transaction that names it: young ones stay.
    moment = time.time() - ORPHAN_SECONDS
    for blob in blobs:
        if blob.name not in named and blob.modified < moment:
            await to_thread.run_sync(services.blobs.remove_older, blob.name, moment)
            log.info("orphan removed", digest=blob.name, bytes=blob.size)
    for part in parts:
        size = sessions.get(part.name)
        # A URL limits nothing: more than was announced goes at once.
        if part.size > size if size is not None else part.modified < moment:
            await to_thread.run_sync(services.uploads.drop, part.name)
