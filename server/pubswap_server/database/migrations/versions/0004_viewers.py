"""Viewers of the dashboard."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "viewers",
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("token_sha256", sa.String(64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_viewers"),
        sa.UniqueConstraint("token_sha256", name="uq_viewers_token_sha256"),
    )
