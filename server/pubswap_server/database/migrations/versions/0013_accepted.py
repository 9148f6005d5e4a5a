"""Whether a member's last hello showed the run's base model and verifier."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add the column; members from before it go on as they were."""
    with op.batch_alter_table("members") as table:
        table.add_column(
            sa.Column("accepted", sa.Boolean(), nullable=False, server_default=sa.false())
        )
    op.execute(sa.text("UPDATE members SET accepted = :yes").bindparams(yes=True))
