"""Suspended members, bound certificates, what a run waits for, which responses are donated."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the columns; nobody is suspended or bound yet."""
    with op.batch_alter_table("members") as members:
        members.add_column(
            sa.Column("suspended", sa.Boolean(), nullable=False, server_default=sa.false())
        )
        members.add_column(sa.Column("certificate", sa.String(length=64), nullable=True))
    with op.batch_alter_table("submissions") as submissions:
        submissions.add_column(sa.Column("donatable", sa.JSON(), nullable=True))
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("waiting_for", sa.Text(), nullable=True))
