"""A future release whose schema has one more migration."""

import shutil
from pathlib import Path

import pytest

from pubswap_server.database import engine

MIGRATION = """
from alembic import op

revision, down_revision = "next", "{previous}"

def upgrade():
    op.execute("UPDATE runs SET name = name || '-upgraded'")
    op.execute("CREATE TABLE additions (id INTEGER)")
"""


def upgrade_to_next_release(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make this process run that release, with its migrations in `folder`."""
    previous = engine.newest_schema()
    shutil.copytree(engine.MIGRATIONS, folder)
    (folder / "versions" / "next.py").write_text(
        MIGRATION.format(previous=previous), encoding="utf-8"
    )
    patch.setattr(engine, "MIGRATIONS", folder)
