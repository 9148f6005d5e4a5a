"""Schema migrations: from the first release to the current tables, and to a later release."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, inspect, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.terms import read_terms
from pubswap_server.database.engine import migrate, schema_of
from pubswap_server.database.naming import naming_columns
from pubswap_server.database.tables import Base, PublicStepRow, RunRow
from pubswap_server.server import prepared
from pubswap_server.settings import load_settings
from support.client.results import CARD
from support.coordinator.next_release import upgrade_to_next_release
from support.coordinator.older import go_back
from support.coordinator.places import on_sqlite
from support.coordinator.postgres import Postgres


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """An engine for the test's database."""
    made = create_engine(database_url)
    yield made
    made.dispose()


@on_sqlite
def test_the_first_release_s_schema_becomes_that_of_the_tables(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    """Nothing differs, including what Alembic does not compare: names, triggers, index conditions.

    If this fails, the tables have changed and need a migration.
    """
    schema = Path(__file__).with_name("schema-0010.sql").read_text(encoding="utf-8")
    with closing(sqlite3.connect(str(engine.url.database))) as connection:
        connection.executescript(schema)
    migrate(database_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, Base.metadata) == []
    new = f"sqlite:///{tmp_path / 'new.sqlite'}"
    migrate(new)
    assert triggers(engine) == triggers(create_engine(new, poolclass=NullPool))
    assert len(triggers(engine)) == 2 + 2 * len(list(naming_columns()))
    inspector = inspect(engine)
    for table in Base.metadata.sorted_tables:
        key = inspector.get_pk_constraint(table.name)
        assert key["name"] == f"pk_{table.name}"
        assert key["constrained_columns"] == [column.name for column in table.primary_key]
        indexes = inspector.get_indexes(table.name)
        assert {each["name"] for each in indexes if "sqlite_where" in each["dialect_options"]} == {
            index.name
            for index in table.indexes
            if index.dialect_kwargs.get("sqlite_where") is not None
        }


@on_sqlite
def test_runs_of_before_get_their_terms_once(engine: Engine, database_url: str) -> None:
    """From what was stored of an open run, as it was stored; one that is not open has none yet."""
    schema = Path(__file__).with_name("schema-0010.sql").read_text(encoding="utf-8")
    settings = RunSettings(clients=3).model_dump(mode="json")
    del settings["grpo"]["resample"]  # as of a version without it
    values = {"settings": json.dumps(settings), "model": CARD.model_dump_json()}
    with closing(sqlite3.connect(str(engine.url.database))) as connection, connection:
        connection.executescript(schema)
        for run, state in (("new", "created"), ("old", "training")):
            connection.execute(
                "INSERT INTO runs (id, name, state, paused, round, settings, model, rollbacks, "
                "verifier_version, created_at, epoch) VALUES (:run, :run, :state, 0, 0, :settings, "
                ":model, 0, 'exact@9', '2026-11-23 12:00:00', 1)",
                {"run": run, "state": state, **values},
            )
            digest = digest_of(run.encode())
            connection.execute("INSERT INTO problem_sets VALUES (?, 'public', ?, 2)", (run, digest))
    for _ in range(2):
        migrate(database_url)
        with Session(engine) as session:
            old, new = (session.get_one(RunRow, run) for run in ("old", "new"))
            assert new.terms is None and old.terms is not None
            assert "resample" not in old.terms
            terms = read_terms(old.terms)
            assert (terms.settings, terms.model, terms.name) == (old.settings, CARD, "old")
            assert (terms.verifier_version, terms.public) == ("exact@9", digest_of(b"old"))


def test_public_steps_of_before_keep_their_number_and_summary(
    engine: Engine, database_url: str
) -> None:
    """They had another name; so had the number in a summary."""
    migrate(database_url)
    run = RunRow(id="r", name="run", state="open", settings=RunSettings(), model=CARD)
    run.verifier_version = "v"
    others = {"clients": 3, "replaced": 4, "replaced_share": {"a": 0.5}}
    where = {"run_id": "r", "round": 1, "public_step": 2}
    with Session(engine) as session, session.begin():
        session.add(run)
        session.flush()
        session.add(PublicStepRow(**where, closed=True, summary={"swap": 2, **others}))
        session.add(PublicStepRow(**where | {"public_step": 3}, closed=False, summary=None))
    with engine.begin() as connection:
        go_back(connection.exec_driver_sql, "0021")
    migrate(database_url)
    with Session(engine) as session:
        done = session.get_one(PublicStepRow, ("r", 1, 2))
        assert (done.closed, done.summary) == (True, {"public_step": 2, **others})
        still_open = session.get_one(PublicStepRow, ("r", 1, 3))
        assert (still_open.closed, still_open.summary) == (False, None)


def triggers(engine: Engine) -> dict[str, str]:
    """The statement of each trigger of an SQLite database."""
    query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    with engine.connect() as connection:
        return {row.name: row.sql for row in connection.execute(text(query))}


def test_an_upgrade_keeps_what_there_is_and_an_older_version_refuses_it(
    engine: Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upgrade runs once. The older version changes nothing and says what to do."""
    migrate(database_url)
    values = {"settings": RunSettings(), "model": CARD, "verifier_version": "v"}
    run = RunRow(id="r", name="run", state="open", **values)
    with Session(engine) as session, session.begin():
        session.add(run)
    with monkeypatch.context() as patch:
        upgrade_to_next_release(patch, tmp_path / "migrations")
        for _ in range(2):
            migrate(database_url)
            assert schema_of(engine) == "next"
    with pytest.raises(InvalidSettings, match=r"'next'.* name an empty one"):
        migrate(database_url)
    assert schema_of(engine) == "next"
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT name FROM runs")) == "run-upgraded"
        assert connection.scalar(text("SELECT COUNT(*) FROM additions")) == 0


def test_a_database_with_a_revision_that_is_gone_is_refused(
    engine: Engine, database_url: str
) -> None:
    """In one sentence with what to do; nothing is changed."""
    migrate(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0009'"))
    with pytest.raises(InvalidSettings, match=r"'0009'.* name an empty one"):
        migrate(database_url)
    assert schema_of(engine) == "0009"


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_all_text_is_refused(
    postgres_server: Postgres, encoding: str, tmp_path: Path
) -> None:
    """At the start of a coordinator, whose error says how to create another one.

    PostgreSQL creates such databases in the C locale.
    """
    options = f"ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
    settings = load_settings(data_dir=tmp_path, database_url=postgres_server.new_database(options))
    refused = pytest.raises(InvalidSettings, match=rf"encoding {encoding}.* ENCODING 'UTF8'")
    with refused, prepared(settings):
        pass


def test_processes_that_start_together_migrate_once(engine: Engine, database_url: str) -> None:
    """Each finds the current schema, whichever of them created it."""
    program = f"from pubswap_server.database.engine import migrate; migrate({database_url!r})"
    started = [
        subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE) for _ in range(2)
    ]
    failures = [process.communicate(timeout=60)[1].decode() for process in started]
    assert [process.returncode for process in started] == [0, 0], failures
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
