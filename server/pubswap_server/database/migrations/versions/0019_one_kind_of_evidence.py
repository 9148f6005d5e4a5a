"""One kind of evidence on donors: other noise than their seeds'."""

from alembic import op

revision, down_revision = "0019", "0018"


def upgrade() -> None:
    op.drop_column("doubts", "other_policy")
