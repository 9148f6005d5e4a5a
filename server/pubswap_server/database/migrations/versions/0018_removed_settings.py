"""Settings that were removed: taken out of the runs in which they changed nothing."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

# What a removed setting did not change. Other values stay, so that such a run is refused.
_WITHOUT_EFFECT: dict[str, dict[str, Any]] = {
    "grpo": {
        "learning_rate_shape": "constant",
        "dual_clip": None,
        "overlap": 0,
        "advantage_epsilon": 1e-6,
        "donor_ratio_cap": 2.0,
        "rollout_correction_cap": 2.0,
        "zero_variance": "kl",
    },
    "swap": {
        "schedule": "even",
        "replay": False,
        "prompts": "uniform",
        "donors": "uniform",
        "candidates": 4,
        "max_donor_share": 1.0,
    },
    "members": {"expected": None},
    "aggregation": {"server_beta1": 0.9, "server_beta2": 0.99, "server_tau": 1e-3},
}


_RUNS = sa.table("runs", sa.column("id", sa.String), sa.column("settings", sa.JSON))


def upgrade() -> None:
    """Apply."""
    op.drop_table("prompts")
    database = op.get_bind()
    for run, settings in database.execute(sa.select(_RUNS.c.id, _RUNS.c.settings)).all():
        for table, values in _WITHOUT_EFFECT.items():
            stored = settings.get(table, {})
            for name in [name for name in values if stored.get(name, ...) == values[name]]:
                del stored[name]
        database.execute(sa.update(_RUNS).where(_RUNS.c.id == run).values(settings=settings))
