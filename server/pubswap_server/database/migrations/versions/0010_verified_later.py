"""Responses are stored when they arrive, and verified after that."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """What is there has its verdicts; when it came is not known, and matters no more."""
    with op.batch_alter_table("submissions") as submissions:
        submissions.alter_column("correct", existing_type=sa.JSON(), nullable=True)
        submissions.add_column(
            sa.Column(
                "received_at",
                sa.DateTime(timezone=True),
                nullable=False,
                server_default=sa.text("CURRENT_TIMESTAMP"),
            )
        )
