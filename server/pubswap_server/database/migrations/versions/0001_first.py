"""The schema of the first release. It stays as it is, whatever becomes of `tables`."""

from collections.abc import Callable
from functools import partial

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_NAMING = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}
_schema = sa.MetaData(naming_convention=_NAMING)

_key = partial(sa.Column, primary_key=True)
_required = partial(sa.Column, nullable=False)
_optional = partial(sa.Column, nullable=True)
_ID, _NAME, _KIND, _DIGEST = sa.String(32), sa.String(63), sa.String(16), sa.String(71)
_MOMENT = sa.DateTime(timezone=True)
_UNFINISHED = sa.text("state NOT IN ('finished', 'cancelled')")


def _table(name: str, *columns: sa.schema.SchemaItem) -> None:
    sa.Table(name, _schema, *columns)


def _run(column: Callable[..., sa.Column[str]], index: bool | None = None) -> sa.Column[str]:
    return column("run_id", _ID, sa.ForeignKey("runs.id"), index=index)


def _index(name: str, *columns: str, where: sa.TextClause, unique: bool = False) -> sa.Index:
    return sa.Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)


_table(
    "runs",
    _key("id", _ID),
    _required("name", _NAME, index=True),
    _required("state", _KIND, index=True),
    _required("paused", sa.Boolean),
    _required("round", sa.Integer),
    _required("settings", sa.JSON),
    _required("model", sa.JSON),
    _optional("tokenizer", _DIGEST),
    _optional("waiting_for", sa.Text),
    _optional("failure", sa.Text),
    _required("rollbacks", sa.Integer),
    _required("created_at", _MOMENT),
    _required("epoch", sa.Integer),
    _index("uq_runs_unfinished_name", "name", where=_UNFINISHED, unique=True),
)
_table(
    "leases",
    _run(_key),
    _optional("holder", sa.String(255)),
    _required("term", sa.Integer),
    _required("beats", sa.BigInteger),
)
_table(
    "problem_sets",
    _run(_key),
    _key("kind", _KIND),
    _required("digest", _DIGEST),
    _required("problems", sa.Integer),
)
_table(
    "members",
    _key("id", sa.Integer),
    _run(_required),
    _required("name", _NAME),
    _required("role", _KIND),
    _required("token_sha256", sa.String(64), unique=True),
    _required("active", sa.Boolean),
    _required("suspended", sa.Boolean),
    _required("accepted", sa.Boolean),
    _optional("certificate", sa.String(64)),
    _optional("last_seen", _MOMENT),
    _optional("progress", sa.JSON),
    sa.UniqueConstraint("run_id", "name"),
)
_table(
    "invites",
    _key("code_sha256", sa.String(64)),
    _run(_required),
    _required("name", _NAME),
    _required("role", _KIND),
    _required("expires_at", _MOMENT),
    _optional("used_at", _MOMENT),
    _required("reissue", sa.Boolean),
)
_table(
    "blobs",
    _run(_key),
    _key("digest", _DIGEST),
    _key("member", _NAME),
    _required("canonical", _DIGEST),
    _required("size", sa.BigInteger),
)
_table(
    "uploads",
    _key("id", _ID),
    _run(_required, index=True),
    _required("member", _NAME),
    _required("digest", _DIGEST),
    _required("size", sa.BigInteger),
    _required("expires_at", _MOMENT, index=True),
)
_table(
    "rounds",
    _run(_key),
    _key("round", sa.Integer),
    _optional("adapter", _DIGEST),
    _optional("residual", _DIGEST),
    _optional("server_state", _DIGEST),
    _optional("drift", sa.JSON),
    _optional("evaluation", sa.JSON),
)
_table(
    "updates",
    _run(_key),
    _key("round", sa.Integer),
    _key("member", _NAME),
    _required("digest", _DIGEST),
    _optional("canonical", _DIGEST),
    _required("metrics", sa.JSON),
    _required("late", sa.Boolean),
    _required("received_at", _MOMENT),
    _index("ix_updates_kept", "run_id", "round", where=sa.text("canonical IS NOT NULL")),
)
_table(
    "swaps",
    _run(_key),
    _key("round", sa.Integer),
    _key("swap", sa.Integer),
    _required("first_at", _MOMENT),
    _required("closed", sa.Boolean),
    _optional("summary", sa.JSON),
)
_table(
    "prompts",
    _run(_key),
    _key("round", sa.Integer),
    _key("swap", sa.Integer),
    _required("prompts", sa.JSON),
    _optional("right", sa.JSON),
    _required("responses", sa.Integer),
)
_table(
    "submissions",
    _run(_key),
    _key("round", sa.Integer),
    _key("swap", sa.Integer),
    _key("member", _NAME),
    _required("digest", _DIGEST),
    _optional("stored", _DIGEST),
    _optional("correct", sa.JSON),
    _optional("donatable", sa.JSON),
    _required("late", sa.Boolean),
    _required("received_at", _MOMENT),
    _index("ix_submissions_kept", "run_id", "round", where=sa.text("stored IS NOT NULL")),
)
_table(
    "traffic",
    _run(_key),
    _key("round", sa.Integer),
    _key("member", _NAME),
    _key("kind", _KIND),
    _required("bytes", sa.BigInteger),
)
_table(
    "events",
    _key("id", sa.Integer),
    _run(_required, index=True),
    _required("at", _MOMENT),
    _required("kind", sa.String(32)),
    _required("details", sa.JSON),
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
