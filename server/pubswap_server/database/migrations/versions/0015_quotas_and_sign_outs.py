"""Quotas of a run's log, and sessions of the dashboard that were signed out."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Add two tables."""
    op.create_table(
        "log_quotas",
        sa.Column("run_id", sa.String(32), nullable=False),
        sa.Column("about", sa.String(63), nullable=False),
        sa.Column("lines", sa.Integer, nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_log_quotas_run_id"),
        sa.PrimaryKeyConstraint("run_id", "about", name="pk_log_quotas"),
    )
    op.create_table(
        "signed_out",
        sa.Column("session_sha256", sa.String(64), nullable=False),
        sa.Column("forget_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("session_sha256", name="pk_signed_out"),
    )
    op.create_index("ix_signed_out_forget_at", "signed_out", ["forget_at"])
