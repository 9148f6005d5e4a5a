"""The version of the verifier that a run is judged by."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the column; the coordinator fills it as it starts."""
    op.add_column("runs", sa.Column("verifier_version", sa.Text(), nullable=True))
