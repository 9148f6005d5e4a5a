"""The database: short transactions in worker threads, with nothing held during waits."""

import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from anyio import CapacityLimiter, to_thread
from sqlalchemy import Connection, Engine, Executable, create_engine, event, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from pubswap_protocol.command_line.locking import LockHeld, lock
from pubswap_protocol.errors import InvalidSettings, StateInUse, Unavailable
from pubswap_protocol.files import keep_private, make_private
from pubswap_server.database.errors import collided, fault_of, lost
from pubswap_server.database.naming import create_triggers, naming_columns
from pubswap_server.database.tables import Base
from pubswap_server.database.wakeups import Wakeups

T = TypeVar("T")

MIGRATIONS = Path(__file__).parent / "migrations"
BUSY_SECONDS = 5.0
CLOSE_SECONDS = 10.0
# Threads and connections of each kind. Reads never wait for writes, and neither waits for work on
# blobs, which has threads of its own.
READERS = 4
URGENT = 1
WRITERS = 4
TRIES = 4
# The timeouts limit how long a replica that stopped in the middle of a transaction keeps its locks.
# Commits are synchronous whatever the server's default, because a receipt means durable.
_POSTGRES = (
    "-c lock_timeout=5s -c idle_in_transaction_session_timeout=10s -c statement_timeout=60s "
    "-c synchronous_commit=on"
)
# From a database without an encoding, psycopg would read bytes where SQLAlchemy expects text.
_CONNECTION: dict[str, Any] = {"connect_timeout": int(BUSY_SECONDS), "client_encoding": "UTF8"}
# All statements of a read see the same state, as they do in SQLite.
_SNAPSHOT: dict[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
_AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT"}
_CHANGED, _HELD = "changed runs", "held runs"
_MIGRATION_LOCK = 0x70756273776170  # any number that no other user of the database takes
# Infinity is not JSON: PostgreSQL refuses it, and SQLite would pass it on to clients.
_json = partial(json.dumps, allow_nan=False)


def changed(session: Session, run: str, *, awaited: bool = True) -> None:
    """Wake the conductor for a run after the commit, and the members too if this is `awaited`."""
    runs = session.info.setdefault(_CHANGED, {})
    runs[run] = runs.get(run, False) or awaited


def held(session: Session) -> set[str]:
    """The runs whose rows this transaction has locked."""
    runs: set[str] = session.info.setdefault(_HELD, set())
    return runs


class Database:
    """An engine and two ways to use it: `read` and `write`, each one transaction.

    Both raise Unavailable while the database does not answer, and NoSpace when it is full.
    """

    def __init__(self, url: str, wakeups: Wakeups | None = None) -> None:
        sqlite = make_url(url).get_backend_name() == "sqlite"
        self.shared = not sqlite  # with other machines
        self.engine = sqlite_engine(url) if sqlite else _postgres(url)
        # Called with each run that a committed transaction changed, and whether it is awaited.
        self.on_change: Callable[[str, bool], None] = lambda run, awaited: None
        self._wakeups = wakeups or Wakeups()
        self._idle, self._under_way, self._closed = threading.Condition(), 0, False
        self._snapshots = self.engine.execution_options(**({} if sqlite else _SNAPSHOT))
        writing = self.engine.execution_options(immediate=True)
        self._reading = sessionmaker(self._snapshots, expire_on_commit=False)
        self._writing = sessionmaker(writing, expire_on_commit=False)
        # PostgreSQL answers one statement in one round trip, and a transaction around it in three.
        single = self.engine.execution_options(**({} if sqlite else _AUTOCOMMIT))
        self._single = sessionmaker(single, expire_on_commit=False)
        self._readers, self._urgent = CapacityLimiter(READERS), CapacityLimiter(URGENT)
        # SQLite has one writer, so the others queue here instead of trying its lock.
        self._writers = CapacityLimiter(1 if sqlite else WRITERS)

    def snapshot(self) -> contextlib.AbstractContextManager[Connection]:
        """A transaction that sees one moment and does not block writers."""
        return self._snapshots.begin()

    def writing(self) -> contextlib.AbstractContextManager[Session]:
        """A transaction of a command, without the retries of `write`."""
        return self._writing.begin()

    async def read(
        self, work: Callable[[Session], T], *, single: bool = False, urgent: bool = False
    ) -> T:
        """The result of `work`, which only reads, in one transaction.

        A `single` statement needs no transaction. Urgent reads are short, and wait only for each
        other.
        """
        call = partial(self._transact, self._single if single else self._reading, work)
        limiter = self._urgent if urgent else self._readers
        return (await to_thread.run_sync(call, limiter=limiter))[0]

    async def write(self, work: Callable[[Session], T]) -> T:
        """The result of `work` in one transaction, which is committed before this returns.

        `work` is repeated if another transaction took a key or lock that it needs, so it must have
        no effects outside the database. Raises Fenced if it relied on an older state of a run.
        """
        call = partial(self._transact, self._writing, work)
        result, runs = await to_thread.run_sync(call, limiter=self._writers)
        for run, awaited in runs.items():
            self.on_change(run, awaited)
        return result

    def close(self) -> None:
        """Refuse new transactions, wait briefly for those under way, and close all connections."""
        with self._idle:
            self._closed = True
            self._idle.wait_for(lambda: self._under_way == 0, CLOSE_SECONDS)
        self.engine.dispose()

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        # A cancelled task leaves its thread running, in the middle of a transaction.
        with self._idle:
            if self._closed:
                raise Unavailable("The coordinator is stopping.", retry_after=1)
            self._under_way += 1
        try:
            yield
        finally:
            with self._idle:
                self._under_way -= 1
                self._idle.notify_all()

    def _transact(
        self, sessions: sessionmaker[Session], work: Callable[[Session], T]
    ) -> tuple[T, dict[str, bool]]:
        """The result of `work`, and the runs that it has changed."""
        with self._counted():
            for attempt in itertools.count(1):
                committing = False
                try:
                    with sessions.begin() as session:
                        result = work(session)
                        session.flush()
                        runs = session.info.get(_CHANGED, {})
                        self._wakeups.announce(session, runs)
                        committing = True
                    return result, runs
                except SQLAlchemyError as error:
                    # A connection lost during the commit leaves unknown what was committed.
                    again = collided(error) or (lost(error) and not committing)
                    if attempt < TRIES and again:
                        continue
                    if (fault := fault_of(error)) is None:
                        raise
                    raise fault from error
        raise AssertionError("unreachable")


def execute_many(
    session: Session, statement: Executable, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Execute the statement once for each row, in one call.

    With one call per row, the thread releases the GIL and takes it back before the event loop has
    woken up: a thousand members' rows then blocked all requests for 0.16 s.
    """
    if rows:
        session.connection().execute(statement, rows)


def inserting(session: Session, table: type[Base]) -> "sqlite.Insert | postgresql.Insert":
    """An INSERT that can be extended by ON CONFLICT."""
    dialect = session.get_bind().dialect.name
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)


def schema_of(engine: Engine) -> str | None:
    """The revision of the database's schema; None if no coordinator has used it yet."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def newest_schema() -> str:
    head = ScriptDirectory(str(MIGRATIONS)).get_current_head()
    assert head is not None, "the package holds no migrations"
    return head


def upgradable_schemas() -> set[str]:
    """All revisions that this version can upgrade to its own."""
    return {script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions()}


def migrate(url: str) -> None:
    """Bring the schema up to date, in one transaction and one process at a time.

    A new database gets the current tables, an older one whatever it lacks. Raises InvalidSettings
    for a schema that this version does not know, or a database that is not UTF-8.
    """
    parsed = make_url(url)
    sqlite = parsed.get_backend_name() == "sqlite"
    if sqlite and parsed.database:
        make_private(Path(parsed.database).parent)
        # SQLite gives its -wal and -shm files the mode of the database.
        Path(parsed.database).touch(mode=0o600)
        for suffix in ("", "-wal", "-shm"):
            keep_private(Path(parsed.database + suffix))
    engine = create_engine(url, poolclass=NullPool, connect_args={} if sqlite else _CONNECTION)
    if sqlite:
        _begin_explicitly(engine)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    try:
        with engine.execution_options(immediate=True).begin() as connection:
            if not sqlite:
                _check_encoding(connection, parsed.render_as_string(hide_password=True))
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
            config.attributes["connection"] = connection
            if MigrationContext.configure(connection).get_current_revision() is None:
                Base.metadata.create_all(connection, checkfirst=False)
                create_triggers(connection, [(c.table.name, c.name) for c in naming_columns()])
                command.stamp(config, "head")
            else:
                command.upgrade(config, "head")
    except CommandError as error:
        raise InvalidSettings(
            f"The database {parsed.render_as_string(hide_password=True)} has a schema that this "
            f"version of PubSwap does not know ({error}). Serve it with the version that made it, "
            "or name an empty one with --database-url or --data-dir."
        ) from None


def _check_encoding(connection: Connection, url: str) -> None:
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding != "UTF8":
        raise InvalidSettings(
            f"The database {url} has the encoding {encoding}, which cannot hold all text. Make one "
            "with CREATE DATABASE pubswap ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0; and "
            "name it with --database-url."
        )


@contextlib.contextmanager
def sqlite_locked(url: str) -> Iterator[None]:
    """Hold the lock of an SQLite database's only coordinator; raises StateInUse if there is one."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        yield
        return
    database = Path(parsed.database)
    make_private(database.parent)
    try:
        with lock(database.with_name(f"{database.name}.lock")):
            yield
    except LockHeld as other:
        raise StateInUse(
            f"{database} is served by another coordinator (process {other}). Stop that one, use "
            "--workers N for more processes, or PostgreSQL for several coordinators."
        ) from None


def database_time(session: Session) -> datetime:
    """The time on the PostgreSQL server's clock, which all replicas share."""
    moment: datetime = session.execute(text("SELECT clock_timestamp()")).scalar_one()
    return moment


def _postgres(url: str) -> Engine:
    return create_engine(
        url,
        json_serializer=_json,
        pool_size=READERS + URGENT + WRITERS,
        max_overflow=0,
        pool_timeout=BUSY_SECONDS,
        connect_args={**_CONNECTION, "options": _POSTGRES},
    )


def sqlite_engine(url: str) -> Engine:
    engine = create_engine(
        url,
        json_serializer=_json,
        pool_size=READERS + URGENT + 1,
        max_overflow=0,
        connect_args={"timeout": BUSY_SECONDS},
    )

    _begin_explicitly(engine)

    @event.listens_for(engine, "connect")
    def _pragmas(connection: Any, record: Any) -> None:
        # macOS alone knows a fullfsync, see `files.flush`.
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "fullfsync=ON", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    return engine


def _begin_explicitly(engine: Engine) -> None:
    """Begin SQLite's transactions where SQLAlchemy does; pysqlite would begin them late."""

    @event.listens_for(engine, "connect")
    def _no_implicit_transactions(connection: Any, record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        # A writer that began as a reader could find the database changed at its first write.
        immediate = connection.get_execution_options().get("immediate", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
