"""Members that are not in the round under way."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column; who is a member already is in the round under way."""
    op.add_column(
        "members",
        sa.Column("joining", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
