"""A run's terms: made here once for the runs that were opened without."""

import json

import sqlalchemy as sa
from alembic import op

from pubswap_protocol.terms import make_terms

revision = "0014"
down_revision = "0011"

_RUNS = """
SELECT runs.id, name, CAST(settings AS TEXT), CAST(model AS TEXT), verifier_version, digest
FROM runs JOIN problem_sets ON run_id = runs.id AND kind = 'public' WHERE state <> 'created'
"""


def upgrade() -> None:
    """Apply."""
    op.add_column("runs", sa.Column("terms", sa.Text(), nullable=True))
    database, store = op.get_bind(), sa.text("UPDATE runs SET terms = :terms WHERE id = :id")
    for run, name, settings, model, verifier, public in database.execute(sa.text(_RUNS)).all():
        terms = make_terms(name, json.loads(settings), json.loads(model), verifier, public)
        database.execute(store, {"id": run, "terms": terms})
