"""What runs beside the conductor: damaged blobs are dealt with, and leftovers swept."""

import asyncio
import time
from functools import partial

import structlog
from anyio import to_thread
from sqlalchemy.orm import Session

from pubswap_protocol.errors import DamagedBlob, PubSwapError
from pubswap_server import healing, sweeping, uploads
from pubswap_server.conductor import Aggregation, inputs_of
from pubswap_server.services import Services
from pubswap_server.tables import RoundRow, RunRow

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 600.0


async def keep_house(services: Services) -> None:
    """For ever: look for damage at every tick, and sweep at the start and each ten minutes.

    More often where orphans are to go sooner.
    """
    seconds = min(SWEEP_SECONDS, services.settings.orphan_seconds)
    swept = -seconds
    while True:
        try:
            await heal(services)
            if time.monotonic() - swept >= seconds:
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
        for run, round_ in await services.database.write(partial(healing.withdraw, digest=digest)):
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
        made = await to_thread.run_sync(healing.made_again, services.blobs, row, inputs, wanted)
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
    grace = services.settings.orphan_seconds
    # Listed before the rows are read: what is named in between is then not taken for an orphan.
    blobs = await to_thread.run_sync(lambda: list(services.blobs.blobs()))
    parts = await to_thread.run_sync(lambda: list(services.uploads.uploads()))
    named = await services.database.read(sweeping.named)
    sessions = await services.database.read(sweeping.open_uploads)
    for blob in blobs:
        if blob.name not in named and sweeping.old_enough(blob.modified, grace):
            await to_thread.run_sync(services.blobs.remove_older, blob.name, time.time() - grace)
            log.info("orphan removed", digest=blob.name, bytes=blob.size)
    for part in parts:
        if part.name not in sessions and sweeping.old_enough(part.modified, grace):
            await to_thread.run_sync(services.uploads.drop, part.name)
