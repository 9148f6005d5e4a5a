"""Databases of earlier versions, made of today's by undoing migrations."""

from collections.abc import Callable

UNDONE = {
    "0022": (
        "ALTER TABLE submissions RENAME COLUMN public_step TO swap",
        "CREATE TABLE swaps AS SELECT run_id, round, public_step AS swap, first_at, closed, "
        "summary FROM public_steps",
        "DROP TABLE public_steps",
    ),
    "0021": ("DROP TABLE steps",),
    "0019": ("ALTER TABLE doubts ADD COLUMN other_policy FLOAT",),
    "0018": ("CREATE TABLE prompts (run_id VARCHAR(32))",),
    "0017": ("ALTER TABLE members ADD COLUMN certificate VARCHAR(64)",),
    "0016": ("ALTER TABLE rounds DROP COLUMN responses",),
    "0015": ("DROP TABLE log_quotas", "DROP TABLE signed_out"),
    "0014": ("ALTER TABLE runs DROP COLUMN terms",),
    "0011": ("DROP TABLE deployment", "DROP TABLE unnamed_blobs"),
}


def go_back(execute: Callable[[str], object], schema: str) -> None:
    """Make this the database of an earlier schema, by its number; drop the triggers before 0011."""
    for number, statements in UNDONE.items():
        if number > schema:
            for statement in statements:
                execute(statement)
    execute(f"UPDATE alembic_version SET version_num = '{schema}'")
