"""A public step is called so everywhere."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0022", "0021"

_OLD = sa.table(
    "swaps",
    *(sa.column(name) for name in ("run_id", "round", "swap", "closed")),
    sa.column("first_at", sa.DateTime(timezone=True)),
    sa.column("summary", sa.JSON(none_as_null=True)),
)


def upgrade() -> None:
    """Rename a table, with its constraints and what its summaries hold, and a column."""
    steps = op.create_table(
        "public_steps",
        sa.Column("run_id", sa.String(32), nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("public_step", sa.Integer, nullable=False),
        sa.Column("first_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("closed", sa.Boolean, nullable=False),
        sa.Column("summary", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_public_steps_run_id"),
        sa.PrimaryKeyConstraint("run_id", "round", "public_step", name="pk_public_steps"),
    )
    database = op.get_bind()
    for row in database.execute(sa.select(_OLD)).mappings().all():
        values = {**_renamed(dict(row)), "summary": row["summary"] and _renamed(row["summary"])}
        database.execute(sa.insert(steps).values(values))
    op.drop_table("swaps")
    op.execute("ALTER TABLE submissions RENAME COLUMN swap TO public_step")


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    return {"public_step" if name == "swap" else name: value for name, value in values.items()}
