"""Why a member is away by its own policy."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the columns."""
    op.add_column("members", sa.Column("away", sa.String(40), nullable=True))
    op.add_column("members", sa.Column("away_detail", sa.Text(), nullable=True))
