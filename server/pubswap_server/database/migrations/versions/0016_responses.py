"""Responses of a round's evaluation."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Add a column."""
    op.add_column("rounds", sa.Column("responses", sa.JSON(), nullable=True))
