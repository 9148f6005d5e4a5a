"""The evidence that a donor samples at a higher temperature, and whose responses nobody checks."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the columns; nothing is known of either yet."""
    op.add_column("doubts", sa.Column("hotter", sa.Double(), nullable=False, server_default="0"))
    op.add_column(
        "members",
        sa.Column("unverified", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
