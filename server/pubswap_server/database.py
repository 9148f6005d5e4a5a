"""The database: short transactions in worker threads, and nothing held while anybody waits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from alembic import command
from alembic.config import Config
from anyio import to_thread
from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.orm import Session, sessionmaker

T = TypeVar("T")

BUSY_SECONDS = 5.0


class Database:
    """An engine and two ways to use it: `read` and `write`, each one transaction."""

    def __init__(self, url: str) -> None:
        self.engine = _sqlite(url) if make_url(url).drivername == "sqlite" else create_engine(url)
        self._reading = sessionmaker(self.engine, expire_on_commit=False, autoflush=True)
        self._writing = sessionmaker(
            self.engine.execution_options(immediate=True), expire_on_commit=False, autoflush=True
        )

    async def read(self, work: Callable[[Session], T]) -> T:
        """The result of `work` in one transaction that changes nothing."""
        return await to_thread.run_sync(self._in_session, self._reading, work)

    async def write(self, work: Callable[[Session], T]) -> T:
        """The result of `work` in one transaction, which is committed before this returns."""
        return await to_thread.run_sync(self._in_session, self._writing, work)

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    @staticmethod
    def _in_session(make: sessionmaker[Session], work: Callable[[Session], T]) -> T:
        with make.begin() as session:
            return work(session)


def migrate(url: str) -> None:
    """Bring the database's schema up to date."""
    parsed = make_url(url)
    if parsed.drivername == "sqlite" and parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["url"] = url
    command.upgrade(config, "head")


def _sqlite(url: str) -> Engine:
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS})

    @event.listens_for(engine, "connect")
    def _pragmas(connection: Any, record: Any) -> None:
        # pysqlite's own transactions would begin late; ours begin where SQLAlchemy says.
        connection.isolation_level = None
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        # A writer that began as a reader could find the database changed when it first writes.
        immediate = connection.get_execution_options().get("immediate", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine
