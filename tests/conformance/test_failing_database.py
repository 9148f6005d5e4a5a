"""A database that disappears, fills up or comes back: typed errors, and recovery by itself."""

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from pubswap_protocol.errors import NoSpace, Unavailable
from pubswap_protocol.messages import RunState, TaskKind
from pubswap_server.database.engine import Database, migrate
from pubswap_server.database.errors import fault_of
from support.coordinator.coordinator import begun, serving, settings_for
from support.coordinator.postgres import Postgres, postgres


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A PostgreSQL that the test may kill."""
    with postgres() as server:
        yield server


def test_a_coordinator_outlives_its_database(own_postgres: Postgres, tmp_path: Path) -> None:
    """503 with Retry-After while PostgreSQL is down; afterwards the run goes on to its end."""
    url = own_postgres.new_database()
    settings = settings_for(tmp_path).model_copy(update={"database_url": url})
    with serving(settings) as server, server.closing:
        fed = begun(server, method="fedavg", rounds=1)
        assert fed.submit("a", 1, fed.adapter(1)) == "accepted"
        own_postgres.kill()
        with server.http() as http:
            assert http.get("/readyz").status_code == 503
            for path in (f"/v1/runs/{fed.run.id}", "/metrics"):
                answer = http.get(path)
                assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
                assert int(answer.headers["Retry-After"]) >= 1
        with pytest.raises(Unavailable):
            fed.submit("b", 1, fed.adapter(2))
        own_postgres.start()
        deadline = time.monotonic() + 20
        while True:
            try:
                assert fed.submit("b", 1, fed.adapter(2)) == "accepted"
                break
            except Unavailable:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert fed.wait_for(1).state is RunState.FINISHED
        # The listener is back as well, so the waiting client is notified.
        assert fed.members["a"].task(fed.run.id, 5).kind is TaskKind.FINISHED


def test_lost_connections_are_replaced_without_an_error(own_postgres: Postgres) -> None:
    """As after a restart: a connection of the pool turns out to be closed when it is used."""
    url = own_postgres.new_database()
    migrate(url)
    database = Database(url)

    async def use() -> None:
        for _ in range(3):
            await database.read(_pid)
            await database.read(_pid, single=True)
            await database.write(_pid)

    asyncio.run(use())
    with own_postgres.connect("postgres") as admin:
        ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s"
        assert admin.execute(ended, [make_url(url).database]).fetchone() != (0,)
    asyncio.run(use())
    database.close()


def test_a_commit_on_a_lost_connection_is_not_repeated(own_postgres: Postgres) -> None:
    """It may have been committed, so only the caller can decide."""
    url = own_postgres.new_database()
    migrate(url)
    database, tries = Database(url), []

    def work(session: Session) -> None:
        tries.append(pid := _pid(session))

        def lose(_: Session) -> None:
            with own_postgres.connect("postgres") as admin:
                admin.execute("SELECT pg_terminate_backend(%s)", [pid])

        event.listen(session, "before_commit", lose)

    with pytest.raises(Unavailable):
        asyncio.run(database.write(work))
    assert len(tries) == 1
    database.close()


def _pid(session: Session) -> int:
    return int(session.execute(text("SELECT pg_backend_pid()")).scalar_one())


def test_a_full_database_is_told_apart(tmp_path: Path) -> None:
    """NoSpace if the database cannot grow; reads still work."""
    url = f"sqlite:///{tmp_path / 'small.sqlite'}"
    migrate(url)
    database = Database(url)
    with database.engine.connect() as connection:
        connection.execute(text("CREATE TABLE hoard (bytes BLOB)"))
        connection.commit()

    def fill(connection: sqlite3.Connection) -> None:
        connection.execute(text("PRAGMA max_page_count = 100"))
        connection.execute(text("INSERT INTO hoard VALUES (zeroblob(10000000))"))

    import asyncio

    async def play() -> None:
        with pytest.raises(NoSpace):
            await database.write(lambda session: fill(session.connection()))
        assert await database.read(lambda s: s.scalar(text("SELECT count(*) FROM hoard"))) == 0

    asyncio.run(play())
    database.close()


def test_postgres_words_for_a_full_disk_are_no_space() -> None:
    """SQLSTATE 53100, whatever the language of the message."""

    class DiskFull(Exception):
        sqlstate = "53100"

    assert isinstance(fault_of(OperationalError("INSERT", {}, DiskFull("voll"))), NoSpace)
