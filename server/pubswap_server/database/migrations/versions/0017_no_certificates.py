"""Members are no longer bound to client certificates."""

from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Drop a column."""
    op.drop_column("members", "certificate")
