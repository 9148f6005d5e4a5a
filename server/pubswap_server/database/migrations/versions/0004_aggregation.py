"""What a round's aggregation leaves beside its adapter."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Name the residual and the server optimizer's state in the round's row."""
    with op.batch_alter_table("rounds") as batch:
        batch.add_column(sa.Column("residual", sa.String(length=71), nullable=True))
        batch.add_column(sa.Column("server_state", sa.String(length=71), nullable=True))
