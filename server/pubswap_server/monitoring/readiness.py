"""Readiness: the database and store answer, the disk has room, the conductor makes progress."""

import asyncio
import shutil
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
from pubswap_server.notifications import ChangeNotifier
from pubswap_server.storage.store import BlobStore

FRESH_SECONDS = 1.0
ANSWER_SECONDS = 2.0
# In a turn, the conductor waits for a tick and reads the database briefly.
TURN_SECONDS = 30.0

Check = Callable[[], Coroutine[Any, Any, str | None]]


class Readiness:
    """Checks that run at most once a second, however often they are requested.

    Each returns the reason for a failure, or None. A check that hangs is left running and not
    started again, so that an unresponsive store does not pile up threads.
    """

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = checks
        self._running: dict[str, asyncio.Task[str | None]] = {}
        self._lock = asyncio.Lock()
        self._reasons: list[str] = []
        self._checked_at = -FRESH_SECONDS

    async def reasons(self) -> list[str]:
        """Why requests cannot be served, without secrets or addresses; empty if they can."""
        async with self._lock:
            if time.monotonic() - self._checked_at >= FRESH_SECONDS:
                self._reasons = await self._run_checks()
                self._checked_at = time.monotonic()
            return self._reasons

    async def _run_checks(self) -> list[str]:
        for name, check in self._checks.items():
            if name not in self._running:
                self._running[name] = asyncio.create_task(check())
        await asyncio.wait(self._running.values(), timeout=ANSWER_SECONDS)
        reasons = []
        for name, task in list(self._running.items()):
            if not task.done():
                reasons.append(f"the {name} does not answer within {ANSWER_SECONDS:.0f} s")
            elif (reason := self._running.pop(name).result()) is not None:
                reasons.append(reason)
        return reasons


async def database_answers(database: Database) -> str | None:
    try:
        await database.read(lambda session: session.execute(text("SELECT 1")).scalar())
    except (SQLAlchemyError, PubSwapError):
        return "the database does not answer"
    return None


async def store_answers(blobs: BlobStore) -> str | None:
    try:
        await to_thread.run_sync(blobs.check, abandon_on_cancel=True)
    except (OSError, PubSwapError):
        return "the blob store does not answer"
    return None


async def disk_has_room(data_dir: Path, spare_bytes: int) -> str | None:
    try:
        disk = await to_thread.run_sync(shutil.disk_usage, data_dir, abandon_on_cancel=True)
    except OSError:
        return "the data folder cannot be read"
    if disk.free < spare_bytes:
        return f"the disk has less than {spare_bytes} bytes left (spare_bytes)"
    return None


async def conductor_turns(changes: ChangeNotifier, tick_seconds: float) -> str | None:
    silent = steady() - changes.polled_at
    if silent > tick_seconds + TURN_SECONDS:
        return f"the conductor has taken no turn for {silent:.0f} s; restart this process"
    return None
