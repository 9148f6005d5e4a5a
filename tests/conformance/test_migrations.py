"""The schema, from nothing to the tables of today, on every database."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, inspect, text

from pubswap_protocol.errors import InvalidSettings
from pubswap_server.database.engine import migrate
from pubswap_server.database.tables import Base
from support.coordinator.postgres import Postgres


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """Plain connections to the test's database."""
    made = create_engine(database_url)
    yield made
    made.dispose()


def test_the_migrated_schema_is_that_of_the_tables(engine: Engine, database_url: str) -> None:
    """Nothing is left that Alembic would change, and doing it again changes nothing."""
    migrate(database_url)
    migrate(database_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, Base.metadata) == []


def test_indexes_and_keys_are_those_of_the_tables(engine: Engine, database_url: str) -> None:
    """Alembic compares no names of primary keys, and no conditions of indexes."""
    migrate(database_url)
    inspector, where = inspect(engine), f"{engine.dialect.name}_where"
    for table in Base.metadata.sorted_tables:
        key = inspector.get_pk_constraint(table.name)
        assert key["name"] == f"pk_{table.name}"
        assert key["constrained_columns"] == [column.name for column in table.primary_key]
        indexes = inspector.get_indexes(table.name)
        assert {index["name"] for index in indexes if where in index["dialect_options"]} == {
            index.name for index in table.indexes if index.dialect_kwargs.get(where) is not None
        }


def test_a_database_of_an_unknown_schema_is_refused(engine: Engine, database_url: str) -> None:
    """The operator is told what to do, and the database is left alone."""
    migrate(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'later'"))
    with pytest.raises(InvalidSettings, match=r"'later'.* name an empty one"):
        migrate(database_url)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == "later"


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_all_text_is_refused(
    postgres_server: Postgres, encoding: str
) -> None:
    """PostgreSQL makes such ones where the locale is C, and the operator is told of another."""
    options = f"ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
    with pytest.raises(InvalidSettings, match=rf"encoding {encoding}.* ENCODING 'UTF8'"):
        migrate(postgres_server.new_database(options))


def test_processes_that_start_together_migrate_once(engine: Engine, database_url: str) -> None:
    """Each finds the schema of today, whoever made it."""
    program = f"from pubswap_server.database.engine import migrate; migrate({database_url!r})"
    started = [
        subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE) for _ in range(2)
    ]
    failures = [process.communicate(timeout=60)[1].decode() for process in started]
    assert [process.returncode for process in started] == [0, 0], failures
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
