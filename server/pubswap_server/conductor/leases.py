"""Leases on runs: one replica works on a run, and another takes over when it falls silent.

A lease has no expiry date, so no clocks are compared. Its holder adds a beat from time to time, and
a replica that has seen no new beat for `seconds` on its own clock may take the lease over. Each
takeover has a new term. A holder that was stopped or cut off may think that it still holds the
lease, so every result is published in a transaction that checks the term. Safety depends on that
check, not on time.
"""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import structlog
from sqlalchemy import update
from sqlalchemy.orm import Session

from pubswap_protocol.errors import Fenced, PubSwapError
from pubswap_server.clock import steady
from pubswap_server.database.engine import Database
from pubswap_server.database.tables import LeaseRow

log = structlog.get_logger(__name__)


def start_name() -> str:
    """A unique name for this start of a replica, because hosts and ports are not unique."""
    return f"{socket.gethostname()}/{secrets.token_hex(8)}"


def forget(session: Session) -> None:
    """End all leases. Only for the sole process: the leases belong to one that died."""
    session.execute(update(LeaseRow).values(holder=None))


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a run, until another replica takes it."""

    run: str
    term: int


class Leases:
    """The leases as one replica sees them."""

    def __init__(self, replica: str, seconds: float, steady: Callable[[], float] = steady) -> None:
        self.replica, self.seconds = replica, seconds
        self._steady = steady
        self._watched: dict[str, tuple[tuple[str | None, int, int], float]] = {}

    def take(self, session: Session, run: str) -> Lease | None:
        """The lease of a run whose row is locked; None while another replica holds it."""
        row = session.get(LeaseRow, run, with_for_update=True)
        if row is None:
            row = LeaseRow(run_id=run, holder=None, term=0, beats=0)
            session.add(row)
        if row.holder not in (None, self.replica) and not self._silent(row):
            return None
        row.holder, row.term, row.beats = self.replica, row.term + 1, 0
        self._watched.pop(run, None)
        return Lease(run, row.term)

    def _silent(self, row: LeaseRow) -> bool:
        seen, present = (row.holder, row.term, row.beats), self._steady()
        previous, since = self._watched.setdefault(row.run_id, (seen, present))
        if previous != seen:
            self._watched[row.run_id] = (seen, present)
            return False
        return present - since >= self.seconds

    def beat(self, session: Session, lease: Lease) -> None:
        """Add a beat; raises Fenced if the lease was taken over."""
        query = update(LeaseRow).where(LeaseRow.run_id == lease.run, LeaseRow.term == lease.term)
        done = session.execute(query.values(beats=LeaseRow.beats + 1))
        if not done.rowcount:  # type: ignore[attr-defined]
            raise Fenced(f"Another replica works on run {lease.run} now.")

    def give_back(self, session: Session, lease: Lease) -> None:
        """End the lease, in the transaction that publishes the work.

        Raises Fenced if the lease was taken over, so that the transaction changes nothing.
        """
        row = session.get(LeaseRow, lease.run, with_for_update=True)
        if row is None or (row.holder, row.term) != (self.replica, lease.term):
            raise Fenced(f"Another replica works on run {lease.run} now.")
        row.holder = None

    @contextlib.asynccontextmanager
    async def held(self, database: Database, lease: Lease) -> AsyncIterator[None]:
        """Add beats while the body runs; if it fails, release the run to the first taker."""
        beating = asyncio.create_task(self._beat_for_ever(database, lease))
        try:
            yield
        except Exception:
            with contextlib.suppress(PubSwapError):
                await database.write(lambda session: self.give_back(session, lease))
            raise
        finally:
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError, Fenced):
                await beating

    async def _beat_for_ever(self, database: Database, lease: Lease) -> None:
        while True:
            await asyncio.sleep(self.seconds / 4)
            try:
                await database.write(lambda session: self.beat(session, lease))
            except Fenced:
                raise
            except PubSwapError as error:
                log.warning("cannot renew the lease", run=lease.run, error=error.detail)
