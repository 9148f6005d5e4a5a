"""Failures that repeat are kept; numbers from before there were bounds are not."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

LARGEST = 1e15


def upgrade() -> None:
    """Add what a run fails at and how often it was rolled back.

    The weights of the runs that are here stay as they were, without a bound on a share. A drift
    that is no number is forgotten.
    """
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("failure", sa.Text(), nullable=True))
        runs.add_column(sa.Column("rollbacks", sa.Integer(), nullable=False, server_default="0"))
    connection = op.get_bind()
    found = sa.text("SELECT id, settings FROM runs").columns(settings=sa.JSON)
    for id_, settings in connection.execute(found).all():
        if settings.get("aggregation", {}).get("weights") == "examples":
            settings["aggregation"].setdefault("max_weight_share", 1.0)
            connection.execute(
                sa.text("UPDATE runs SET settings = :settings WHERE id = :id"),
                {"settings": json.dumps(settings), "id": id_},
            )
    found = sa.text("SELECT run_id, round, drift FROM rounds").columns(drift=sa.JSON)
    for run, round_, drift in connection.execute(found).all():
        if drift is not None and not all(_is_measured(value) for value in drift.values()):
            connection.execute(
                sa.text("UPDATE rounds SET drift = NULL WHERE run_id = :run AND round = :round"),
                {"run": run, "round": round_},
            )


def _is_measured(value: Any) -> bool:
    return value is not None and (not isinstance(value, int | float) or 0 <= value <= LARGEST)
