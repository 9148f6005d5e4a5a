"""Updates and responses outlive their blobs."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Let an update be without a file, and name the responses' file apart from their digest."""
    with op.batch_alter_table("updates") as updates:
        updates.alter_column("canonical", existing_type=sa.String(length=71), nullable=True)
    with op.batch_alter_table("submissions") as submissions:
        submissions.add_column(sa.Column("stored", sa.String(length=71), nullable=True))
    op.execute("UPDATE submissions SET stored = digest")
    for table, column in (("updates", "canonical"), ("submissions", "stored")):
        kept = sa.text(f"{column} IS NOT NULL")
        op.create_index(
            f"ix_{table}_kept",
            table,
            ["run_id", "round"],
            sqlite_where=kept,
            postgresql_where=kept,
        )
