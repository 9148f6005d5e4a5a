"""The event log is append-only in the database itself, for SQLite and PostgreSQL."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from pubswap_protocol.settings import RunSettings
from pubswap_server.database.engine import Database, migrate
from pubswap_server.database.tables import EventRow, RunRow
from pubswap_server.runs.events import events_after, record
from support.client.results import CARD
from support.coordinator.postgres import postgres


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database with one run, whose log has one event."""
    if request.param == "sqlite":
        yield from with_an_event(f"sqlite:///{tmp_path / 'database'}")
        return
    with postgres() as server:
        yield from with_an_event(server.new_database())


def with_an_event(url: str) -> Iterator[Database]:
    """Migrate a database, and record one event."""
    migrate(url)
    database = Database(url)
    with Session(database.engine) as session, session.begin():
        values = {"settings": RunSettings(), "model": CARD, "verifier_version": "exact@1"}
        session.add(RunRow(id="r", name="run", state="created", **values))
        session.flush()
        record(session, "r", "created", name="run")
    yield database
    database.close()


@pytest.fixture
def engine(database: Database) -> Engine:
    """The database's engine."""
    return database.engine


def test_no_event_follows_an_id_beyond_the_column(database: Database) -> None:
    """A reader may name any number that JSON has."""
    with Session(database.engine) as session:
        assert [event.kind for event in events_after(session, "r", 0)] == ["created"]
        assert events_after(session, "r", 2**53 - 1) == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET kind = 'other'",
        "UPDATE events SET details = '{}' WHERE id = 1",
        "DELETE FROM events",
        "TRUNCATE events",
    ],
)
def test_what_is_written_cannot_be_changed_or_deleted(engine: Engine, statement: str) -> None:
    """The database refuses any such statement, and still accepts new events."""
    if statement.startswith("TRUNCATE") and engine.dialect.name == "sqlite":
        pytest.skip("SQLite has no TRUNCATE")
    with pytest.raises(DBAPIError, match="events are append-only"), engine.begin() as connection:
        connection.execute(text(statement))
    with Session(engine) as session, session.begin():
        record(session, "r", "opened")
    with Session(engine) as session:
        assert [row.kind for row in session.query(EventRow).order_by(EventRow.id)] == [
            "created",
            "opened",
        ]


def test_who_follows_the_log_misses_nothing_while_others_write(database: Database) -> None:
    """If a writer begins first and commits last, as replicas may, its event still comes first."""
    began, finish = threading.Event(), threading.Event()

    def first(session: Session) -> None:
        record(session, "r", "first")
        session.flush()
        began.set()
        assert finish.wait(20)

    async def follow() -> list[str]:
        seen: list[tuple[int, str]] = []

        async def look() -> None:
            after = seen[-1][0] if seen else 0
            found = await database.read(lambda session: events_after(session, "r", after))
            seen.extend((event.id, event.kind) for event in found)

        slow = asyncio.create_task(database.write(first))
        assert await asyncio.to_thread(began.wait, 20)
        quick = asyncio.create_task(database.write(lambda session: record(session, "r", "second")))
        await asyncio.wait([quick], timeout=1)
        await look()
        finish.set()
        await asyncio.gather(slow, quick)
        await look()
        return [kind for _, kind in seen]

    assert asyncio.run(follow()) == ["created", "first", "second"]
