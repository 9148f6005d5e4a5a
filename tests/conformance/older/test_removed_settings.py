"""Runs of an earlier version, whose stored settings hold some that were removed since."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import JSON, String, column, create_engine, select, table, update
from sqlalchemy.pool import NullPool

from pubswap_protocol import paths
from pubswap_protocol.command_line.progress_bar import progress_bar
from pubswap_protocol.errors import Conflict
from pubswap_protocol.messages import RunState
from pubswap_server.admin.backup import backup
from pubswap_server.admin.restore import restore
from pubswap_server.admin.verify import verify
from pubswap_server.settings import ServerSettings
from support.coordinator.coordinator import begun, serving, settings_for
from support.coordinator.older import go_back

RUNS = table("runs", column("id", String), column("settings", JSON))


def age(url: str, settings: dict[str, dict[str, Any]]) -> None:
    """Make this the database of an earlier version, with these settings of runs beside others."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        go_back(connection.exec_driver_sql, "0017")
    for run, tables in settings.items():
        stored = stored_settings(url, run)
        for name, values in tables.items():
            stored[name] = values
        with engine.begin() as connection:
            connection.execute(update(RUNS).where(RUNS.c.id == run).values(settings=stored))


def stored_settings(url: str, run: str) -> dict[str, Any]:
    with create_engine(url, poolclass=NullPool).connect() as connection:
        return dict(connection.scalars(select(RUNS.c.settings).where(RUNS.c.id == run)).one())


def test_a_run_with_a_removed_setting_stops_nothing_but_itself(
    database_url: str, blob_url: str | None, tmp_path: Path
) -> None:
    """It is refused in a sentence and kept as it is; without effect, the setting is dropped."""
    there = {"database_url": database_url, "blob_url": blob_url and f"{blob_url}/{tmp_path.name}"}
    settings = settings_for(tmp_path / "place").model_copy(update=there)
    with serving(settings) as server, server.closing:
        one, other = begun(server), begun(server)
    age(
        database_url,
        {
            one.run.id: {"swap": {"replay": False, "schedule": "even"}},
            other.run.id: {"swap": {"replay": True, "schedule": "even"}},
        },
    )
    with serving(settings) as server, server.closing:
        operator, member = server.client(), server.client(one.tokens["a"])
        assert [run.id for run in operator.runs()] == [one.run.id]
        assert operator.run(one.run.id).settings == one.run.settings
        assert member.public_step_prompts(one.run.id, 1, 1).prompts
        for ask in (
            lambda: operator.run(other.run.id),
            lambda: server.client(other.tokens["a"]).task(other.run.id, 0),
            lambda: server.client(other.tokens["a"]).public_step_prompts(other.run.id, 1, 1),
        ):
            with pytest.raises(Conflict, match=r"cannot go on .*\(swap.replay: removed in"):
                ask()
        with progress_bar() as bar:
            backup(settings, tmp_path / "backup", bar)
        operator.move_run(one.run.id, paths.RUN_CANCEL)
        assert operator.run(one.run.id).state is RunState.CANCELLED
    kept = stored_settings(database_url, other.run.id)
    assert kept | {"chat_template_options": {}} == (
        other.run.settings.model_dump(mode="json") | {"swap": {"replay": True}}
    )
    again = ServerSettings(data_dir=tmp_path / "again")
    with progress_bar() as bar:
        restore(again, tmp_path / "backup", bar)
    assert stored_settings(again.sqlalchemy_url, other.run.id) == kept
    with progress_bar() as bar:
        assert verify(again, bar).healthy
