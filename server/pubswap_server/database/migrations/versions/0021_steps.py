"""Figures of members' steps."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    """Add a table."""
    figures = ("reward", "loss", "kl", "response_tokens", "tokens_per_second")
    op.create_table(
        "steps",
        sa.Column("run_id", sa.String(32), nullable=False),
        sa.Column("member", sa.String(63), nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        *(sa.Column(name, sa.Double, nullable=True) for name in figures),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_steps_run_id"),
        sa.PrimaryKeyConstraint("run_id", "member", "round", "step", name="pk_steps"),
    )
