"""Public prompts that are chosen by what their responses have shown."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Make the table; a run that draws its prompts uniformly has no rows in it."""
    op.create_table(
        "prompts",
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("swap", sa.Integer(), nullable=False),
        sa.Column("prompts", sa.JSON(), nullable=False),
        sa.Column("right", sa.JSON(), nullable=True),
        sa.Column("responses", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_prompts_run_id")),
        sa.PrimaryKeyConstraint("run_id", "round", "swap", name=op.f("pk_prompts")),
    )
