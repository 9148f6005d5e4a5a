"""The deployment's id, and which blobs in the store this database once named."""

import sqlalchemy as sa
from alembic import op

from pubswap_server.database.naming import create_triggers

revision, down_revision = "0011", "0010"

NAMING = (
    *(("uploads", "digest"), ("blobs", "digest"), ("updates", "stored")),
    *(("submissions", "stored"), ("problem_sets", "digest"), ("runs", "tokenizer")),
    *(("rounds", "adapter"), ("rounds", "residual"), ("rounds", "server_state")),
)


def upgrade() -> None:
    op.create_table(
        "deployment",
        sa.Column("key", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("id", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_deployment"),
    )
    op.create_table(
        "unnamed_blobs",
        sa.Column("digest", sa.String(71), nullable=False),
        sa.Column("noted_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("digest", name="pk_unnamed_blobs"),
    )
    create_triggers(op.get_bind(), NAMING)
