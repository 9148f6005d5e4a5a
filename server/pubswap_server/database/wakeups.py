"""Wake-ups between the processes that share a database.

PostgreSQL has LISTEN/NOTIFY; workers on one SQLite file poll its change counter.
"""

import asyncio
from collections.abc import Callable, Mapping

import psycopg
import structlog
from anyio import CapacityLimiter, to_thread
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

log = structlog.get_logger(__name__)

OnChange = Callable[[str | None, bool], None]  # a run, and whether members wait for the change

CHANNEL = "pubswap_runs"
POLL_SECONDS = 0.1
RECONNECT_SECONDS = 0.5
QUIET_SECONDS = 5.0


class Wakeups:
    """Tell other processes which runs have changed; this class is for a single process."""

    def announce(self, session: Session, runs: Mapping[str, bool]) -> None:
        """Announce changed runs, in their transaction, and whether members wait for each."""

    async def listen(self, on_change: OnChange) -> None:
        """Call `on_change` forever with each run that another process changed; None for any run."""
        await asyncio.Event().wait()


def wakeups_for(url: str, replica: str, workers: int) -> Wakeups:
    if make_url(url).get_backend_name() == "postgresql":
        return ListenNotify(url, replica)
    return DataVersion(url) if workers > 1 else Wakeups()


class DataVersion(Wakeups):
    """Poll SQLite's counter of other connections' commits.

    The commit itself moves it, and it does not tell which run has changed.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    async def listen(self, on_change: OnChange) -> None:
        # A thread of its own: the database's threads may all be waiting for a lock.
        limiter = CapacityLimiter(1)
        engine = create_engine(
            self._url, poolclass=NullPool, connect_args={"check_same_thread": False}
        )
        connection = await to_thread.run_sync(engine.connect, limiter=limiter)
        query, seen = text("PRAGMA data_version"), None
        try:
            while True:
                version = await to_thread.run_sync(connection.scalar, query, limiter=limiter)
                if seen not in (None, version):
                    on_change(None, True)
                seen = version
                await asyncio.sleep(POLL_SECONDS)
        finally:
            connection.close()


class ListenNotify(Wakeups):
    """LISTEN on a connection of its own, and NOTIFY in the transaction of the change.

    A lost connection is retried forever; any run may have changed meanwhile.
    """

    def __init__(self, url: str, replica: str) -> None:
        plain = make_url(url).set(drivername="postgresql")
        self._conninfo = plain.render_as_string(hide_password=False)
        self._replica = replica

    def announce(self, session: Session, runs: Mapping[str, bool]) -> None:
        for run, awaited in sorted(runs.items()):
            payload = f"{run} {self._replica} {'awaited' if awaited else 'quiet'}"
            session.execute(text("SELECT pg_notify(:c, :p)"), {"c": CHANNEL, "p": payload})

    async def listen(self, on_change: OnChange) -> None:
        while True:
            try:
                await self._listen(on_change)
            except (psycopg.Error, OSError) as error:
                log.warning("cannot listen for database notifications", error=str(error).strip())
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _listen(self, on_change: OnChange) -> None:
        connection = await psycopg.AsyncConnection.connect(
            self._conninfo, autocommit=True, connect_timeout=5
        )
        async with connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            on_change(None, True)
            while True:
                async for notice in connection.notifies(timeout=QUIET_SECONDS):
                    run, replica, awaited = notice.payload.split(" ")
                    if replica != self._replica:
                        on_change(run, awaited == "awaited")
                # A connection that died silently is noticed only on use.
                async with asyncio.timeout(QUIET_SECONDS):
                    await connection.execute("SELECT 1")
