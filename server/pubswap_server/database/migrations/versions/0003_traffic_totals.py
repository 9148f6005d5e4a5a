"""Each member's bytes of all rounds, as rows of round -1, which no page has to sum up."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Sum up what there is."""
    op.execute(
        "INSERT INTO traffic (run_id, round, member, kind, bytes) "
        "SELECT run_id, -1, member, kind, SUM(bytes) FROM traffic GROUP BY run_id, member, kind"
    )
