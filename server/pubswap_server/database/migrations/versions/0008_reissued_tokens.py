"""Invites that replace the token of a member that has enrolled."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the column; no invite before it was one of these."""
    with op.batch_alter_table("invites") as table:
        table.add_column(
            sa.Column("reissue", sa.Boolean(), nullable=False, server_default=sa.false())
        )
