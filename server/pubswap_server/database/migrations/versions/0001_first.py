"""The schema of the first release. It stays as it is, whatever becomes of `tables`."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import SchemaItem

revision = "0001"
down_revision = None

_NAMING = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}
_schema = sa.MetaData(naming_convention=_NAMING)
_ID, _NAME, _WORD, _DIGEST, _SHA256 = (sa.String(length) for length in (32, 63, 16, 71, 64))
_MOMENT = sa.DateTime(timezone=True)


def _columns(kind: Any, *names: str, **options: Any) -> Iterator[sa.Column[Any]]:
    for name in names:
        run = [sa.ForeignKey("runs.id")] if name == "run_id" else []
        yield sa.Column(name, kind, *run, **options)


_keys = partial(_columns, primary_key=True)
_required = partial(_columns, nullable=False)
_optional = partial(_columns, nullable=True)
_unique = partial(_columns, nullable=False, unique=True)
_indexed = partial(_columns, nullable=False, index=True)


def _table(name: str, *columns: Iterable[SchemaItem]) -> None:
    sa.Table(name, _schema, *(column for group in columns for column in group))


def _index(name: str, *columns: str, where: str, unique: bool = False) -> Iterator[sa.Index]:
    rows = sa.text(where)
    yield sa.Index(name, *columns, unique=unique, sqlite_where=rows, postgresql_where=rows)


_table(
    "runs",
    _keys(_ID, "id"),
    _indexed(_NAME, "name"),
    _indexed(_WORD, "state"),
    _required(sa.Boolean, "paused"),
    _required(sa.Integer, "round", "rollbacks", "epoch"),
    _required(sa.JSON, "settings", "model"),
    _optional(_DIGEST, "tokenizer"),
    _optional(sa.Text, "waiting_for", "failure"),
    _required(_MOMENT, "created_at"),
    _index(
        "uq_runs_unfinished_name",
        "name",
        where="state NOT IN ('finished', 'cancelled')",
        unique=True,
    ),
)
_table(
    "leases",
    _keys(_ID, "run_id"),
    _optional(sa.String(255), "holder"),
    _required(sa.Integer, "term"),
    _required(sa.BigInteger, "beats"),
)
_table(
    "problem_sets",
    _keys(_ID, "run_id"),
    _keys(_WORD, "kind"),
    _required(_DIGEST, "digest"),
    _required(sa.Integer, "problems"),
)
_table(
    "members",
    _keys(sa.Integer, "id"),
    _required(_ID, "run_id"),
    _required(_NAME, "name"),
    _required(_WORD, "role"),
    _unique(_SHA256, "token_sha256"),
    _required(sa.Boolean, "active", "suspended", "accepted"),
    _optional(_SHA256, "certificate"),
    _optional(_MOMENT, "last_seen"),
    _optional(sa.JSON, "progress"),
    [sa.UniqueConstraint("run_id", "name")],
)
_table(
    "invites",
    _keys(_SHA256, "code_sha256"),
    _required(_ID, "run_id"),
    _required(_NAME, "name"),
    _required(_WORD, "role"),
    _required(_MOMENT, "expires_at"),
    _optional(_MOMENT, "used_at"),
    _required(sa.Boolean, "reissue"),
)
_table(
    "blobs",
    _keys(_ID, "run_id"),
    _keys(_DIGEST, "digest"),
    _keys(_NAME, "member"),
    _required(_DIGEST, "canonical"),
    _required(sa.BigInteger, "size"),
)
_table(
    "uploads",
    _keys(_ID, "id"),
    _indexed(_ID, "run_id"),
    _required(_NAME, "member"),
    _required(_DIGEST, "digest"),
    _required(sa.BigInteger, "size"),
    _indexed(_MOMENT, "expires_at"),
)
_table(
    "rounds",
    _keys(_ID, "run_id"),
    _keys(sa.Integer, "round"),
    _optional(_DIGEST, "adapter", "residual", "server_state"),
    _optional(sa.JSON, "drift", "evaluation"),
)
_table(
    "updates",
    _keys(_ID, "run_id"),
    _keys(sa.Integer, "round"),
    _keys(_NAME, "member"),
    _required(_DIGEST, "digest"),
    _optional(_DIGEST, "canonical"),
    _required(sa.JSON, "metrics"),
    _required(sa.Boolean, "late"),
    _required(_MOMENT, "received_at"),
    _index("ix_updates_kept", "run_id", "round", where="canonical IS NOT NULL"),
)
_table(
    "swaps",
    _keys(_ID, "run_id"),
    _keys(sa.Integer, "round", "swap"),
    _required(_MOMENT, "first_at"),
    _required(sa.Boolean, "closed"),
    _optional(sa.JSON, "summary"),
)
_table(
    "prompts",
    _keys(_ID, "run_id"),
    _keys(sa.Integer, "round", "swap"),
    _required(sa.JSON, "prompts"),
    _optional(sa.JSON, "right"),
    _required(sa.Integer, "responses"),
)
_table(
    "submissions",
    _keys(_ID, "run_id"),
    _keys(sa.Integer, "round", "swap"),
    _keys(_NAME, "member"),
    _required(_DIGEST, "digest"),
    _optional(_DIGEST, "stored"),
    _optional(sa.JSON, "correct", "donatable"),
    _required(sa.Boolean, "late"),
    _required(_MOMENT, "received_at"),
    _index("ix_submissions_kept", "run_id", "round", where="stored IS NOT NULL"),
)
_table(
    "traffic",
    _keys(_ID, "run_id"),
    _keys(sa.Integer, "round"),
    _keys(_NAME, "member"),
    _keys(_WORD, "kind"),
    _required(sa.BigInteger, "bytes"),
)
_table(
    "events",
    _keys(sa.Integer, "id"),
    _indexed(_ID, "run_id"),
    _required(_MOMENT, "at"),
    _required(sa.String(32), "kind"),
    _required(sa.JSON, "details"),
)

# Events are never changed, and deleted only when their run's state says `deleted`. A later revision
# that makes their table anew (`batch_alter_table` on SQLite) must make its triggers anew too.
_REFUSAL = "events are append-only"
_RUN_STATE = "(SELECT state FROM runs WHERE id = OLD.run_id)"
_TRIGGERS = {
    "sqlite": (
        "CREATE TRIGGER events_no_update BEFORE UPDATE ON events "
        f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END",
        f"CREATE TRIGGER events_no_delete BEFORE DELETE ON events WHEN {_RUN_STATE} "
        f"IS NOT 'deleted' BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION events_refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{_REFUSAL}'; END $$",
        # For each statement, so that TRUNCATE is refused too.
        "CREATE TRIGGER events_append_only BEFORE UPDATE OR TRUNCATE ON events "
        "FOR EACH STATEMENT EXECUTE FUNCTION events_refuse_change()",
        "CREATE FUNCTION events_refuse_delete() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF {_RUN_STATE} = 'deleted' THEN RETURN OLD; END IF; "
        f"RAISE EXCEPTION '{_REFUSAL}'; END $$",
        "CREATE TRIGGER events_no_delete BEFORE DELETE ON events "
        "FOR EACH ROW EXECUTE FUNCTION events_refuse_delete()",
    ),
}


def upgrade() -> None:
    """Create all tables, and the triggers that keep the log."""
    connection = op.get_bind()
    _schema.create_all(connection, checkfirst=False)
    for statement in _TRIGGERS[connection.dialect.name]:
        op.execute(statement)
