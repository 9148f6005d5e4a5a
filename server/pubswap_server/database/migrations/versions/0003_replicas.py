"""Several replicas: the epoch of a run, its lease, and one unfinished run of a name."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add them."""
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("epoch", sa.Integer(), nullable=False, server_default="1"))
    unfinished = sa.text("state NOT IN ('finished', 'cancelled')")
    op.create_index(
        "uq_runs_unfinished_name",
        "runs",
        ["name"],
        unique=True,
        sqlite_where=unfinished,
        postgresql_where=unfinished,
    )
    op.create_table(
        "leases",
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("holder", sa.String(length=255), nullable=True),
        sa.Column("term", sa.Integer(), nullable=False),
        sa.Column("beats", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_leases_run_id")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_leases")),
    )
