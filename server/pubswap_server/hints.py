"""What need not be on disk before the answer: heartbeats, and the bytes of downloads.

Kept in memory and written about every second, all in one transaction. A crash loses that second.
"""

import asyncio
from collections import Counter
from datetime import datetime

import structlog
from sqlalchemy import or_, update
from sqlalchemy.orm import Session

from pubswap_protocol.errors import PubSwapError
from pubswap_protocol.messages import Progress
from pubswap_server import traffic
from pubswap_server.auth import Member
from pubswap_server.clock import now
from pubswap_server.database import Database
from pubswap_server.tables import MemberRow, RunRow

log = structlog.get_logger(__name__)

FLUSH_SECONDS = 1.0

_Seen = dict[int, tuple[datetime, Progress]]
_Sizes = Counter[tuple[str, int, str, traffic.Kind]]


class Hints:
    """What the database will hear of soon."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen: _Seen = {}
        self._sizes: _Sizes = Counter()
        self._one_at_a_time = asyncio.Lock()

    def seen(self, member: Member, progress: Progress) -> None:
        """The member is alive, and this far."""
        self._seen[member.id] = (now(), progress)

    def downloaded(self, member: Member, round_: int, kind: traffic.Kind, size: int) -> None:
        """The member was sent this many bytes."""
        self._sizes[member.run, round_, member.name, kind] += size

    async def flush(self) -> None:
        """Write what there is; while the database does not take it, it is kept."""
        async with self._one_at_a_time:
            seen, sizes = self._seen, self._sizes
            if not seen and not sizes:
                return
            self._seen, self._sizes = {}, Counter()
            try:
                await self._database.write(lambda session: _write(session, seen, sizes))
            except PubSwapError as error:
                log.warning("heartbeats are kept in memory", error=error.detail)
                self._seen = seen | self._seen
                self._sizes.update(sizes)

    async def flush_for_ever(self) -> None:
        """Write about every second."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            try:
                await self.flush()
            except Exception:
                # What cannot be written this time must not end the writing for good.
                log.exception("heartbeats were not written")


def _write(session: Session, seen: _Seen, sizes: _Sizes) -> None:
    for member, (at, progress) in sorted(seen.items()):
        # Another replica may have heard, and written, a later one.
        older = or_(MemberRow.last_seen.is_(None), MemberRow.last_seen < at)
        session.execute(
            update(MemberRow)
            .where(MemberRow.id == member, older)
            .values(last_seen=at, progress=progress.model_dump(mode="json"))
        )
    deleted = {run for run, *_ in sizes if session.get(RunRow, run) is None}
    for (run, round_, name, kind), size in sorted(sizes.items()):
        if run in deleted:
            continue
        traffic.count(session, run, round_, name, kind, size)
