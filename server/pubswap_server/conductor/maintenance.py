"""Maintenance beside the conductor: withdraw damaged blobs, sweep leftovers."""

import asyncio
import time
from collections.abc import Collection
from datetime import datetime
from functools import partial

import structlog
from anyio import to_thread
from sqlalchemy import bindparam, delete, or_, select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import PubSwapError
from pubswap_protocol.messages import RunState
from pubswap_protocol.tensors.adapter import initial_file
from pubswap_server.aggregation.inputs import RoundInputs, inputs_of
from pubswap_server.aggregation.round import aggregate_round
from pubswap_server.clock import now
from pubswap_server.conductor.leftovers import removable
from pubswap_server.database.engine import execute_many, inserting
from pubswap_server.database.naming import digests_in, naming_columns
from pubswap_server.database.tables import (
    BlobRow,
    DeploymentRow,
    RoundRow,
    RunRow,
    SetRow,
    SubmissionRow,
    UnnamedRow,
    UpdateRow,
    UploadRow,
)
from pubswap_server.runs import rounds, runs, uploads
from pubswap_server.runs.events import INPUT_DAMAGED, damaged_input, record
from pubswap_server.runs.state import ENDED, reopened
from pubswap_server.services import Services
from pubswap_server.storage.store import BlobStore, Stored

log = structlog.get_logger(__name__)

ORPHAN_SECONDS = 600.0  # age at which a freed blob is removed; also the time between sweeps


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
    outcome = or_(RoundRow.adapter == digest, RoundRow.server_state == digest)
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
    """Remove what is left over in the store, as long as it is this deployment's."""
    for upload in await services.database.write(uploads.take_expired):
        await to_thread.run_sync(services.uploads.drop, upload)
    before = await services.database.read(_noted)
    # List before reading the rows, so that a blob named in between is not taken for an orphan.
    blobs = await to_thread.run_sync(lambda: list(services.blobs.blobs()))
    parts = await to_thread.run_sync(lambda: list(services.uploads.uploads()))
    gone = before.keys() - {blob.name for blob in blobs} - await remember_kept(services)
    own, named, noted, sessions = await services.database.read(_rows)
    if (owner := await to_thread.run_sync(services.blobs.owner)) != own:
        log.error("the blob store belongs to another deployment; nothing is removed", owner=owner)
        return
    # Keep young blobs, because a blob is on disk a moment before a transaction names it.
    moment, at = time.time() - ORPHAN_SECONDS, now()
    unnamed = [blob for blob in blobs if blob.name not in named and blob.modified < moment]
    # Another process may have stored a blob and not remembered it before its own next sweep.
    settled = [blob for blob in unnamed if blob.modified < moment - ORPHAN_SECONDS]
    strangers = [blob for blob in settled if blob.name not in noted]
    if strangers:
        never = {"blobs": len(strangers), "bytes": sum(blob.size for blob in strangers)}
        log.warning("blobs that this database never named; they stay for some days", **never)
    if strangers or gone:
        await services.database.write(partial(_note_unnamed, strangers, at, gone))
    for blob in removable(unnamed, noted, at):
        await to_thread.run_sync(services.blobs.remove_older, blob.name, moment)
        log.info("orphan removed", digest=blob.name, bytes=blob.size)
    for part in parts:
        size = sessions.get(part.name)
        # A signed URL limits no size, so drop an upload at once if it is larger than announced.
        if part.size > size if size is not None else part.modified < moment:
            await to_thread.run_sync(services.uploads.drop, part.name)


async def remember_kept(services: Services) -> set[str]:
    """Leave tombstones for the blobs that this process stored, and return their digests.

    A row that was to name one may not have been written, because its request was refused meanwhile.
    """
    kept = services.blobs.kept()
    if kept:
        await services.database.write(partial(leave_tombstones, digests=kept))
        services.blobs.forget_kept(kept)
    return kept


def leave_tombstones(session: Session, digests: Collection[str]) -> None:
    insert = inserting(session, UnnamedRow).on_conflict_do_nothing()
    execute_many(session, insert, [{"digest": d, "noted_at": None} for d in sorted(digests)])


def _noted(session: Session) -> dict[str, datetime | None]:
    return {row.digest: row.noted_at for row in session.scalars(select(UnnamedRow))}


def _rows(
    session: Session,
) -> tuple[str | None, set[str], dict[str, datetime | None], dict[str, int]]:
    """The deployment, the digests to keep, tombstones and notes, and the sizes of open uploads."""
    own = session.scalar(select(DeploymentRow.id))
    sizes = {row.id: row.size for row in session.scalars(select(UploadRow))}
    return own, digests_in(session, naming_columns()), _noted(session), sizes


def _note_unnamed(
    strangers: Collection[Stored], at: datetime, gone: Collection[str], session: Session
) -> None:
    """Note blobs that were never named, and forget those that are not stored any more."""
    insert = inserting(session, UnnamedRow).on_conflict_do_nothing()
    execute_many(session, insert, [{"digest": b.name, "noted_at": at} for b in strangers])
    forget = delete(UnnamedRow).where(UnnamedRow.digest == bindparam("gone"))
    execute_many(session, forget, [{"gone": digest} for digest in sorted(gone)])
