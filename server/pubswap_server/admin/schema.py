"""Which schema a database has, and which ones this software knows."""

from pathlib import Path

from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from pubswap_server import database


def schema_of(connection: Connection) -> str | None:
    """The database's revision; None if no coordinator has ever used it."""
    return MigrationContext.configure(connection).get_current_revision()


def newest_schema() -> str:
    """The revision that this software works with."""
    head = _scripts().get_current_head()
    assert head is not None, "the package holds no migrations"
    return head


def known_schemas() -> set[str]:
    """All revisions that this software can bring to its own."""
    return {script.revision for script in _scripts().walk_revisions()}


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(Path(database.__file__).parent / "migrations"))
