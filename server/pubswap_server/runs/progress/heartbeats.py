"""Write-behind buffer for signs of life, heartbeats, their steps and download sizes.

They are kept in memory and written in one transaction about every second, signs of life less
often. A crash loses what was not yet written.
"""

import asyncio
import itertools
from collections import Counter, defaultdict
from datetime import datetime

import structlog
from sqlalchemy import bindparam, or_, select, update
from sqlalchemy.orm import Session

from pubswap_protocol.errors import PubSwapError
from pubswap_protocol.messages import Progress, Role
from pubswap_server.clock import now
from pubswap_server.database.engine import Database, execute_many
from pubswap_server.database.tables import MemberRow, RunRow
from pubswap_server.runs import traffic
from pubswap_server.runs.auth import MemberPrincipal
from pubswap_server.runs.progress import steps

log = structlog.get_logger(__name__)

FLUSH_SECONDS = 1.0
# Every request is a sign of life, and most members send several in this time.
ALIVE_SECONDS = 10.0
# Steps of one member in memory. Only a flood, or a database that is down for long, makes so many.
MAX_WAITING = 1000

_Seen = dict[int, Progress]
_Sizes = Counter[traffic.Key]
_Steps = dict[steps.Key, tuple[datetime, Progress]]


class WriteBehind:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._alive: dict[int, datetime] = {}
        self._seen: _Seen = {}
        self._sizes: _Sizes = Counter()
        self._steps: defaultdict[int, _Steps] = defaultdict(dict)  # by member
        self._lock = asyncio.Lock()

    def alive(self, member: MemberPrincipal) -> None:
        self._alive[member.id] = now()

    def seen(self, member: MemberPrincipal, progress: Progress) -> None:
        self._seen[member.id] = progress
        if member.role is Role.CLIENT and steps.has_figures(progress):
            waiting = self._steps[member.id]
            key = member.run, member.name, progress.round, progress.step
            if key in waiting or len(waiting) < MAX_WAITING:
                waiting[key] = now(), progress

    def downloaded(
        self, member: MemberPrincipal, round_: int, kind: traffic.Kind, size: int
    ) -> None:
        self._sizes[member.run, round_, member.name, kind] += size

    async def flush(self, *, all_alive: bool = True) -> None:
        """Write everything, or keep it if the database fails."""
        async with self._lock:
            seen, sizes, steps_ = self._seen, self._sizes, self._steps
            alive = self._alive if all_alive else {}
            if not (alive or seen or sizes):
                return
            if all_alive:
                self._alive = {}
            self._seen, self._sizes, self._steps = {}, Counter(), defaultdict(dict)
            points = {key: point for each in steps_.values() for key, point in each.items()}
            try:
                await self._database.write(
                    lambda session: _write(session, alive, seen, sizes, points)
                )
            except PubSwapError as error:
                log.warning("cannot write heartbeats; they stay in memory", error=error.detail)
                self._alive = alive | self._alive
                self._seen = seen | self._seen
                self._sizes.update(sizes)
                for member, waiting in steps_.items():
                    both = waiting | self._steps[member]
                    self._steps[member] = dict(itertools.islice(both.items(), MAX_WAITING))

    async def flush_for_ever(self) -> None:
        for turn in itertools.count(1):
            await asyncio.sleep(FLUSH_SECONDS)
            try:
                await self.flush(all_alive=turn * FLUSH_SECONDS % ALIVE_SECONDS == 0)
            except Exception:
                # A failure now must not end this task for good.
                log.exception("heartbeats were not written")


def _write(
    session: Session,
    alive: dict[int, datetime],
    seen: _Seen,
    sizes: _Sizes,
    points: steps.Points,
) -> None:
    this = MemberRow.id == bindparam("member")
    execute_many(
        session,
        update(MemberRow).where(this).values(progress=bindparam("seen")),
        [
            {"member": m, "seen": progress.model_dump(mode="json")}
            for m, progress in sorted(seen.items())
        ],
    )
    # Another replica may have written a later time.
    older = or_(MemberRow.last_seen.is_(None), MemberRow.last_seen < bindparam("at"))
    execute_many(
        session,
        update(MemberRow).where(this, older).values(last_seen=bindparam("at")),
        [{"member": member, "at": at} for member, at in sorted(alive.items())],
    )
    existing = set(
        session.scalars(select(RunRow.id).where(RunRow.id.in_({run for run, *_ in sizes})))
    )
    traffic.count(session, {key: size for key, size in sizes.items() if key[0] in existing})
    if points:
        steps.write(session, points)
