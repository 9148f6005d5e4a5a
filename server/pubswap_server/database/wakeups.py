"""How the processes that share a database hear of each other's changes.

One class for each way: nothing to hear in one process, PostgreSQL's LISTEN/NOTIFY, and for the
workers on one SQLite file its change counter.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import psycopg
import structlog
from anyio import CapacityLimiter, to_thread
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

log = structlog.get_logger(__name__)

Heard = Callable[[str | None, bool], None]  # a run, and whether members wait for the change

CHANNEL = "pubswap_runs"
POLL_SECONDS = 0.1
RECONNECT_SECONDS = 0.5
QUIET_SECONDS = 5.0


class Wakeups(Protocol):
    """Carries the names of changed runs from process to process."""

    def announce(self, session: Session, runs: Mapping[str, bool]) -> None:
        """Tell the others; called in the transaction of the change, just before its commit.

        For each run, whether members wait for such a change.
        """

    async def listen(self, heard: Heard) -> None:
        """For ever: call `heard` with each run that another process changed; None for any."""


def wakeups_for(url: str, replica: str, workers: int) -> Wakeups:
    """The way that fits this database, and the number of processes on this machine."""
    if make_url(url).get_backend_name() == "postgresql":
        return ListenNotify(url, replica)
    return DataVersion(url) if workers > 1 else OneProcess()


class OneProcess:
    """There is nobody to tell and nothing to hear."""

    def announce(self, session: Session, runs: Mapping[str, bool]) -> None:
        """See `Wakeups`."""

    async def listen(self, heard: Heard) -> None:
        """See `Wakeups`."""
        await asyncio.Event().wait()


class DataVersion:
    """SQLite's counter of the changes that other connections have committed, looked at often."""

    def __init__(self, url: str) -> None:
        self._url = url

    def announce(self, session: Session, runs: Mapping[str, bool]) -> None:
        """The commit itself moves the counter."""

    async def listen(self, heard: Heard) -> None:
        """See `Wakeups`. Which run changed is not known."""
        # A thread of its own: the database's threads may all be waiting for a lock.
        limiter = CapacityLimiter(1)
        engine = create_engine(
            self._url, poolclass=NullPool, connect_args={"check_same_thread": False}
        )
        connection = await to_thread.run_sync(engine.connect, limiter=limiter)
        query, before = text("PRAGMA data_version"), None
        try:
            while True:
                after = await to_thread.run_sync(connection.scalar, query, limiter=limiter)
                if before not in (None, after):
                    heard(None, True)
                before = after
                await asyncio.sleep(POLL_SECONDS)
        finally:
            connection.close()


class ListenNotify:
    """PostgreSQL's LISTEN on a connection of its own, and NOTIFY in the change's transaction."""

    def __init__(self, url: str, replica: str) -> None:
        plain = make_url(url).set(drivername="postgresql")
        self._conninfo = plain.render_as_string(hide_password=False)
        self._replica = replica

    def announce(self, session: Session, runs: Mapping[str, bool]) -> None:
        """See `Wakeups`."""
        for run, awaited in sorted(runs.items()):
            payload = f"{run} {self._replica} {'awaited' if awaited else 'quiet'}"
            session.execute(text("SELECT pg_notify(:c, :p)"), {"c": CHANNEL, "p": payload})

    async def listen(self, heard: Heard) -> None:
        """See `Wakeups`. Connects again for ever; what was missed meanwhile may be any run."""
        while True:
            try:
                await self._listen(heard)
            except (psycopg.Error, OSError) as error:
                log.warning("not listening to the database", error=str(error).strip())
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _listen(self, heard: Heard) -> None:
        connection = await psycopg.AsyncConnection.connect(
            self._conninfo, autocommit=True, connect_timeout=5
        )
        async with connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            heard(None, True)
            while True:
                async for notice in connection.notifies(timeout=QUIET_SECONDS):
                    run, replica, *more = notice.payload.split(" ")
                    if replica != self._replica:
                        heard(run, more != ["quiet"])
                # A connection that died silently is noticed only when it is used.
                async with asyncio.timeout(QUIET_SECONDS):
                    await connection.execute("SELECT 1")
