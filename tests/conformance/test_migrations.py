"""The schema, from the first released one upward, on every database."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    DateTime,
    Engine,
    MetaData,
    Table,
    create_engine,
    select,
)
from sqlalchemy.types import Integer, String

import pubswap_server
from pubswap_server.database.engine import migrate
from pubswap_server.database.tables import Base

FIRST = "0001"
TABLES = 11


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """Plain connections to the test's database."""
    made = create_engine(database_url)
    yield made
    made.dispose()


def upgrade(url: str, revision: str) -> None:
    """Bring an empty database to a released schema."""
    config = Config()
    folder = Path(pubswap_server.__file__).parent / "database" / "migrations"
    config.set_main_option("script_location", str(folder))
    config.attributes["url"] = url
    command.upgrade(config, revision)


def some(column: Column[Any]) -> Any:
    """A value for a column; names and digests alike, so that rows refer to each other."""
    kinds: dict[type, Any] = {
        Boolean: True,
        Integer: 1,
        DateTime: datetime(2026, 1, 2, tzinfo=UTC),
        JSON: {"some": [1, None]},
        String: "training" if column.name == "state" else "x",
    }
    return next(value for kind, value in kinds.items() if isinstance(column.type, kind))


def filled(engine: Engine) -> dict[str, tuple[Any, ...]]:
    """Put a row into every table; returns them."""
    tables = MetaData()
    tables.reflect(engine)
    rows = {}
    with engine.begin() as connection:
        for table in tables.sorted_tables:
            if table.name != "alembic_version":
                connection.execute(table.insert(), {c.name: some(c) for c in table.columns})
                rows[table.name] = tuple(connection.execute(select(table)).one())
    return rows


def test_a_database_of_the_first_release_keeps_every_row(engine: Engine, database_url: str) -> None:
    """Each table's row is still there after all migrations, with what it held."""
    upgrade(database_url, FIRST)
    before = filled(engine)
    assert len(before) == TABLES
    migrate(database_url)
    after = MetaData()
    with engine.connect() as connection:
        for name, row in before.items():
            table = Table(name, after, autoload_with=connection)
            held = tuple(connection.execute(select(table)).one())
            assert held[: len(row)] == row


def test_the_migrated_schema_is_that_of_the_tables(engine: Engine, database_url: str) -> None:
    """Nothing is left that Alembic would change, and doing it again changes nothing."""
    migrate(database_url)
    migrate(database_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, Base.metadata) == []


def test_processes_that_start_together_migrate_once(engine: Engine, database_url: str) -> None:
    """Each finds the schema of today, whoever made it."""
    program = f"from pubswap_server.database.engine import migrate; migrate({database_url!r})"
    started = [
        subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE) for _ in range(3)
    ]
    failures = [process.communicate(timeout=60)[1].decode() for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], failures
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
