"""Methods, strategies, rules and other named values have their own parameters."""

import sqlalchemy as sa
from alembic import op

from pubswap_protocol.command_line.older_settings import converted

revision, down_revision = "0020", "0019"

_RUNS = sa.table("runs", sa.column("id", sa.String), sa.column("settings", sa.JSON))


def upgrade() -> None:
    """Apply."""
    database = op.get_bind()
    for run, settings in database.execute(sa.select(_RUNS.c.id, _RUNS.c.settings)).all():
        update = sa.update(_RUNS).where(_RUNS.c.id == run)
        database.execute(update.values(settings=converted(settings)))
