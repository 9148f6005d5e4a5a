"""A round's means, which the dashboard draws; rounds from before have none."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the column."""
    op.add_column("rounds", sa.Column("means", sa.JSON(), nullable=True))
