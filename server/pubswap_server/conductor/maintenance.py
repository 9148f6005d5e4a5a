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
from pubswap_server.runs import rounds, runs, uploads
from pubswap_server.runs.events import INPUT_DAMAGED, damaged_input, record
from pubswap_server.runs.state import ENDED, reopened
from pubswap_server.services import Services
from pubswap_server.storage.store import BlobStore

log = structlog.get_logger(__name__)

ORPHAN_SECONDS = 600.0  # age at which an unnamed blob is removed; also the time between sweeps
_DIGEST_LENGTH = 71
# Digests that a member has announced. Another column names the stored blob, which may be freed. An
# upload's digest is not here, because its bytes may be a blob a moment before a row names that.
ANNOUNCED = frozenset({("updates", "digest"), ("submissions", "digest")})


def withdraw(session: Session, digest: str) -> list[tuple[str, int]]:
    """Withdraw every receipt that relied on a blob, so that its sender is asked again.

    Returns the rounds (run, round) whose outcome it was.

    An update of the round under way is asked for again from its client, which still has it. An
    exchange goes on without the responses, and their sender trains on its own. A round's outcome is
    computed again from its updates, see `recompute`. If that fails, the operator has to put it
    back, like an input of the run itself.
    """
    for update in session.scalars(select(UpdateRow).where(UpdateRow.stored == digest)):
        run = session.get_one(RunRow, update.run_id, with_for_update=True)
        what = f"update of {update.member} in round {update.round}"
        if update.round != run.round or update.late or run.state in ENDED:
            _note_lost(session, run.id, digest, what)
            continue
        _note(session, run.id, digest, what)
        session.delete(update)
        if run.state == RunState.AGGREGATING:
            rounds.reopen(session, run, reopened)
    for submission in session.scalars(select(SubmissionRow).where(SubmissionRow.stored == digest)):
        _note(session, submission.run_id, digest, f"responses of {submission.member}")
        submission.late, submission.stored = True, None
    for blob in session.scalars(select(BlobRow).where(BlobRow.digest == digest)):
        _note(session, blob.run_id, digest, f"blob of {blob.member}")
        session.delete(blob)
    outcome = or_(
        RoundRow.adapter == digest, RoundRow.residual == digest, RoundRow.server_state == digest
    )
    outcomes = []
    for row in session.scalars(select(RoundRow).where(outcome)):
        _note_lost(session, row.run_id, digest, f"outcome of round {row.round}")
        outcomes.append((row.run_id, row.round))
    for some in session.scalars(select(SetRow).where(SetRow.digest == digest)):
        _note_input(session, some.run_id, digest, f"{some.kind} problems")
    for run_id in session.scalars(select(RunRow.id).where(RunRow.tokenizer == digest)):
        _note_input(session, run_id, digest, "tokenizer")
    return outcomes


def _note_input(session: Session, run: str, digest: str, what: str) -> None:
    if damaged_input(session, run) is None:  # damage is found again at every use
        record(session, run, INPUT_DAMAGED, digest=digest, what=what)


def _note_outcome(session: Session, run: str, round_: int, digest: str) -> None:
    """Note a lost outcome that the run needs: its round begins from it, or it is the final one."""
    row = session.get(RunRow, run)
    if row is not None and round_ >= row.round - 1:
        _note_input(session, run, digest, f"outcome of round {round_}")


def _note_lost(session: Session, run: str, digest: str, what: str) -> None:
    if damaged_input(session, run) is None:  # the operator is told of that one first
        _note(session, run, digest, what)


def _note(session: Session, run: str, digest: str, what: str) -> None:
    record(session, run, "blob damaged", digest=digest, what=what)


def recompute(
    run: RunRow, inputs: RoundInputs | None, blobs: BlobStore, into: BlobStore | None = None
) -> str:
    """Compute a round's outcome again; returns the adapter's digest.

    `inputs` is None for round 0, whose adapter was sent or comes from the seed alone. Raises
    DamagedBlob if an input is lost, too.
    """
    if inputs is not None:
        return aggregate_round(inputs, blobs, into).adapter
    if (sent := run.settings.initial_adapter) is not None:
        blobs.path(sent)
        return sent
    parts = initial_file(run.model.layout, run.settings.seed)
    return (into or blobs).write(parts)[0]


def digest_columns() -> Iterator[Column[Any]]:
    """The columns that hold digests, found by type so that none is forgotten."""
    for table in Base.metadata.sorted_tables:
        for column in table.columns:
            if isinstance(column.type, String) and column.type.length == _DIGEST_LENGTH:
                yield column


def naming_columns() -> Iterator[Column[Any]]:
    """The columns that name blobs that must be kept."""
    return (c for c in digest_columns() if (c.table.name, c.name) not in ANNOUNCED)


def named_digests(session: Session) -> set[str]:
    digests: set[str] = set()
    for column in naming_columns():
        digests.update(session.scalars(select(column).where(column.is_not(None))))
    return digests


async def keep_house(services: Services) -> None:
    """Repair damage at every tick, and sweep at the start and every ten minutes, forever."""
    swept = -ORPHAN_SECONDS
    while True:
        try:
            await heal(services)
            if time.monotonic() - swept >= ORPHAN_SECONDS:
                await sweep(services)
                swept = time.monotonic()
        except PubSwapError as error:
            log.warning("cannot keep house", error=error.detail)
        except Exception:
            # A full disk must not end this task for good.
            log.exception("housekeeping failed")
        await asyncio.sleep(services.settings.tick_seconds)


async def heal(services: Services) -> None:
    """Withdraw receipts that relied on damaged blobs, and recompute lost outcomes."""
    for digest in sorted(services.blobs.take_damaged()):
        # Another replica may have done this, and the blob may have been sent again since.
        if not await to_thread.run_sync(services.blobs.set_aside, digest):
            continue
        log.error("blob damaged or missing", digest=digest)
        for run, round_ in await services.database.write(partial(withdraw, digest=digest)):
            if not await _made_again(services, run, round_):
                lost = partial(_note_outcome, run=run, round_=round_, digest=digest)
                await services.database.write(lost)


async def _made_again(services: Services, run: str, round_: int) -> bool:
    def read(session: Session) -> tuple[RunRow, RoundInputs | None, str | None]:
        row = runs.by_id(session, run)
        inputs = inputs_of(session, row, round_) if round_ else None
        return row, inputs, session.get_one(RoundRow, (run, round_)).adapter

    try:
        row, inputs, lost = await services.database.read(read)
        again = await to_thread.run_sync(recompute, row, inputs, services.blobs)
    except PubSwapError as error:
        log.error("cannot recompute round", run=run, round=round_, error=error.detail)
        return False
    if again != lost:
        log.error("recomputed round differs", run=run, round=round_, adapter=again, was=lost)
        return False
    log.info("round recomputed", run=run, round=round_, adapter=again)
    return True


async def sweep(services: Services) -> None:
    for upload in await services.database.write(uploads.take_expired):
        await to_thread.run_sync(services.uploads.drop, upload)
    # List before reading the rows, so that a blob named in between is not taken for an orphan.
    blobs = await to_thread.run_sync(lambda: list(services.blobs.blobs()))
    parts = await to_thread.run_sync(lambda: list(services.uploads.uploads()))
    named = await services.database.read(named_digests)
    sessions = await services.database.read(
        lambda session: {row.id: row.size for row in session.scalars(select(UploadRow))}
    )
    # Keep young blobs, because a blob is on disk a moment before a transaction names it.
    moment = time.time() - ORPHAN_SECONDS
    for blob in blobs:
        if blob.name not in named and blob.modified < moment:
            await to_thread.run_sync(services.blobs.remove_older, blob.name, moment)
            log.info("orphan removed", digest=blob.name, bytes=blob.size)
    for part in parts:
        size = sessions.get(part.name)
        # A signed URL limits no size, so drop an upload at once if it is larger than announced.
        if part.size > size if size is not None else part.modified < moment:
            await to_thread.run_sync(services.uploads.drop, part.name)
