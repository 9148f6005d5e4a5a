"""The secret that a run's sampling seeds follow from, and what receivers find of donors."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add them; runs from before have no secret, and nothing is checked in them."""
    op.add_column("runs", sa.Column("sampling_secret", sa.String(64), nullable=True))
    op.create_table(
        "doubts",
        sa.Column("run_id", sa.String(32), nullable=False),
        sa.Column("donor", sa.String(63), nullable=False),
        sa.Column("receiver", sa.String(63), nullable=False),
        sa.Column("responses", sa.BigInteger(), nullable=False),
        sa.Column("evidence", sa.Double(), nullable=False),
        sa.Column("verdicts", sa.Integer(), nullable=False),
        sa.Column("doubts", sa.Integer(), nullable=False),
        sa.Column("doubted", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "donor", "receiver", name="pk_doubts"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_doubts_run_id"),
    )
