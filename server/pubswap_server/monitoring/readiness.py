"""Whether requests can be served now: database and store answer, disk has room, runs move."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from anyio import to_thread
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from pubswap_protocol.errors import PubSwapError
from pubswap_server.clock import steady
from pubswap_server.database.engine import Database
from pubswap_server.notifications import ChangedRuns
from pubswap_server.storage.store import BlobStore

FRESH_SECONDS = 1.0
ANSWER_SECONDS = 2.0
# A turn of the conductor is a wait of a tick and a short reading of the database.
TURN_SECONDS = 30.0

Check = Callable[[], Coroutine[Any, Any, str | None]]


class Readiness:
    """Looks at most once a second, whoever asks how often, and never waits for long.

    A check that hangs is left running and not begun again, so that a store that does not answer
    does not gather threads.
    """

    def __init__(self, checks: Mapping[str, Check]) -> None:
        """Each check returns the reason why not, or None; its name is told if it does not end."""
        self._checks = checks
        self._running: dict[str, asyncio.Task[str | None]] = {}
        self._looking = asyncio.Lock()
        self._reasons: list[str] = []
        self._looked = -FRESH_SECONDS

    async def reasons(self) -> list[str]:
        """Why requests cannot be served; empty if they can. Holds no secret and no address."""
        async with self._looking:
            if time.monotonic() - self._looked >= FRESH_SECONDS:
                self._reasons = await self._look()
                self._looked = time.monotonic()
            return self._reasons

    async def _look(self) -> list[str]:
        for name, check in self._checks.items():
            if name not in self._running:
                self._running[name] = asyncio.create_task(check())
        await asyncio.wait(self._running.values(), timeout=ANSWER_SECONDS)
        found = []
        for name, task in list(self._running.items()):
            if not task.done():
                found.append(f"the {name} does not answer within {ANSWER_SECONDS:.0f} s")
                continue
            del self._running[name]
            reason = task.result()
            if reason is not None:
                found.append(reason)
        return found


def checks_of(
    database: Database, blobs: BlobStore, data_dir: Path, spare_bytes: int
) -> dict[str, Check]:
    """The coordinator's checks."""

    async def database_answers() -> str | None:
        try:
            await database.read(lambda session: session.execute(text("SELECT 1")).scalar())
        except (SQLAlchemyError, PubSwapError):
            return "the database does not answer"
        return None

    async def store_answers() -> str | None:
        try:
            await to_thread.run_sync(blobs.check, abandon_on_cancel=True)
        except (OSError, PubSwapError):
            return "the blob store does not answer"
        return None

    async def disk_has_room() -> str | None:
        try:
            found = await to_thread.run_sync(os.statvfs, data_dir, abandon_on_cancel=True)
        except OSError:
            return "the data folder cannot be read"
        if found.f_bavail * found.f_frsize < spare_bytes:
            return f"the disk has less than {spare_bytes} bytes left (spare_bytes)"
        return None

    return {
        "database": database_answers,
        "blob store": store_answers,
        "disk": disk_has_room,
    }


def turns_check(work: ChangedRuns, tick_seconds: float) -> Check:
    """Whether the conductor still asks for work, as it does at each of its turns."""

    async def conductor_turns() -> str | None:
        silent = steady() - work.asked_at
        if silent > tick_seconds + TURN_SECONDS:
            return f"the conductor has taken no turn for {silent:.0f} s; restart this process"
        return None

    return conductor_turns
