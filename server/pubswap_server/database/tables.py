"""The database's tables. Large objects are blobs, which rows name by digest."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy import (
    DDL,
    JSON,
    BigInteger,
    ColumnElement,
    DateTime,
    Double,
    ForeignKey,
    Index,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    cast,
    event,
    text,
    type_coerce,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from pubswap_protocol.errors import Conflict, first_fault
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import RunSettings
from pubswap_server.clock import now

M = TypeVar("M", bound=BaseModel)

NAMING = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC. SQLite keeps no time zone, and PostgreSQL answers in the session's."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        # SQLite would lose any other time zone.
        return value and value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Parsed(TypeDecorator[M]):
    """A value of a pydantic class, in a JSON column.

    A text is parsed once, because nearly every request reads its run's settings and long model.
    """

    impl = JSON
    cache_ok = True

    def __init__(self, kind: type[M]) -> None:
        super().__init__()
        self.kind = kind  # the name of the argument, by which SQLAlchemy tells such types apart

    def process_bind_param(self, value: M | None, dialect: Dialect) -> Any:
        return value and value.model_dump(mode="json")

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return type_coerce(cast(column, Text), self)  # PostgreSQL's driver would parse JSON

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[str], M]:
        return partial(_parsed, self.kind)


@lru_cache(maxsize=1024)
def _parsed(kind: type[BaseModel], text: str) -> Any:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        return UnreadValue(first_fault(error), text)


class UnreadValue:
    """What an earlier version stored and this one cannot read, such as a removed setting.

    It is kept as it is. Any use of it raises Conflict, so that it stops only its own run.
    """

    def __init__(self, fault: str, text: str) -> None:
        self._fault, self._text = fault, text

    def __getattr__(self, name: str) -> Any:
        raise Conflict(
            f"This version of pubswap cannot go on with the run ({self._fault}). Nothing of it was "
            "deleted: let the coordinator's earlier version end it, or create a new run."
        )

    def model_dump(self, mode: str) -> Any:
        """What is stored, for a backup."""
        return json.loads(self._text)


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy's own protocol
        datetime: UtcDateTime,
        # None is NULL, and not the JSON text `null`.
        dict[str, Any]: JSON(none_as_null=True),
        list[dict[str, Any]]: JSON(none_as_null=True),
        list[list[bool]]: JSON(none_as_null=True),
        list[int]: JSON(none_as_null=True),
    }


def _retained_index(table: str, column: str) -> Index:
    """An index of a table's rows whose blob is kept: few, only those of the last rounds."""
    where = text(f"{column} IS NOT NULL")
    return Index(f"ix_{table}_kept", "run_id", "round", sqlite_where=where, postgresql_where=where)


_UNFINISHED = text("state NOT IN ('finished', 'cancelled')")


class RunRow(Base):
    """A run and its state.

    `epoch` grows with every change of the row, and a change applies only to the epoch that was read
    (`UPDATE ... WHERE epoch = ?`). So a decision on an older state changes nothing. `failure` is
    why the run cannot go on, after several tries. `sampling_secret`: see exchange/sampling; null if
    no responses are checked. `verifier_version` is the version of the verifier when members were
    last asked for theirs. `terms` are what members approve; null until the run is open. Being
    long, they are loaded only where they are used.
    """

    __tablename__ = "runs"
    __table_args__ = (
        Index(
            "uq_runs_unfinished_name",
            "name",
            unique=True,
            sqlite_where=_UNFINISHED,
            postgresql_where=_UNFINISHED,
        ),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(63), index=True)
    state: Mapped[str] = mapped_column(String(16), index=True)
    paused: Mapped[bool] = mapped_column(default=False)
    round: Mapped[int] = mapped_column(default=0)
    settings: Mapped[RunSettings] = mapped_column(Parsed(RunSettings))
    model: Mapped[ModelCard] = mapped_column(Parsed(ModelCard))
    tokenizer: Mapped[str | None] = mapped_column(String(71))
    sampling_secret: Mapped[str | None] = mapped_column(String(64))
    verifier_version: Mapped[str] = mapped_column(Text)
    terms: Mapped[str | None] = mapped_column(Text, deferred=True)
    waiting_for: Mapped[str | None] = mapped_column(Text)
    failure: Mapped[str | None] = mapped_column(Text)
    rollbacks: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime] = mapped_column(default=now)
    epoch: Mapped[int] = mapped_column()

    __mapper_args__ = {"version_id_col": epoch}  # noqa: RUF012 - SQLAlchemy's own protocol

    @property
    def readable(self) -> bool:
        """Whether this version can read the run, which an earlier one may have created."""
        return not any(isinstance(value, UnreadValue) for value in (self.settings, self.model))


class DeploymentRow(Base):
    """The deployment's id, in a single row; its blob store has the same, see `ownership`."""

    __tablename__ = "deployment"

    key: Mapped[int] = mapped_column(primary_key=True, autoincrement=False, default=1)
    id: Mapped[str] = mapped_column(String(32))


class UnnamedRow(Base):
    """A blob that need not be kept once no row names it.

    A tombstone if `noted_at` is null: this database named the blob and freed it (see `naming`), or
    one of its processes stored it. Otherwise the blob was found in the store then, and this
    database had never named it.
    """

    __tablename__ = "unnamed_blobs"

    digest: Mapped[str] = mapped_column(String(71), primary_key=True)
    noted_at: Mapped[datetime | None]


class LeaseRow(Base):
    """The replica that works on a run; `beats` grows meanwhile, `term` with every takeover."""

    __tablename__ = "leases"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    holder: Mapped[str | None] = mapped_column(String(255))
    term: Mapped[int]
    beats: Mapped[int] = mapped_column(BigInteger)


class SetRow(Base):
    __tablename__ = "problem_sets"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    digest: Mapped[str] = mapped_column(String(71))
    problems: Mapped[int]


class MemberRow(Base):
    """A member of one run; its token belongs to that run alone.

    `accepted`: its last hello showed the run's base model and verifier. `away`: why it does not
    take part for now, as a code and in words. `joining`: it came when others had already handed
    something in, and is in the next round.
    """

    __tablename__ = "members"
    __table_args__ = (UniqueConstraint("run_id", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"))
    name: Mapped[str] = mapped_column(String(63))
    role: Mapped[str] = mapped_column(String(16))
    token_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    active: Mapped[bool] = mapped_column(default=True)
    suspended: Mapped[bool] = mapped_column(default=False)
    accepted: Mapped[bool] = mapped_column(default=False)
    away: Mapped[str | None] = mapped_column(String(40))
    away_detail: Mapped[str | None] = mapped_column(Text)
    joining: Mapped[bool] = mapped_column(default=False)
    unverified: Mapped[bool] = mapped_column(default=False)
    last_seen: Mapped[datetime | None]
    progress: Mapped[dict[str, Any] | None]


class InviteRow(Base):
    """A one-time invite; a `reissue` replaces the token of a member that has enrolled."""

    __tablename__ = "invites"

    code_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"))
    name: Mapped[str] = mapped_column(String(63))
    role: Mapped[str] = mapped_column(String(16))
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]
    reissue: Mapped[bool] = mapped_column(default=False)


class ViewerRow(Base):
    """A person who may look at the dashboard, and at nothing else."""

    __tablename__ = "viewers"

    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    token_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime] = mapped_column(default=now)


class SignedOutRow(Base):
    """A session of the dashboard that was signed out before it expired."""

    __tablename__ = "signed_out"

    session_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    forget_at: Mapped[datetime] = mapped_column(index=True)


class BlobRow(Base):
    """An adapter that a member has sent in the round under way."""

    __tablename__ = "blobs"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    digest: Mapped[str] = mapped_column(String(71), primary_key=True)
    member: Mapped[str] = mapped_column(String(63), primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)


class UploadRow(Base):
    """An upload under way; its bytes are in the upload store under the same id."""

    __tablename__ = "uploads"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), index=True)
    member: Mapped[str] = mapped_column(String(63))
    digest: Mapped[str] = mapped_column(String(71))
    size: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[datetime] = mapped_column(index=True)


# `sort_order`, because a mixin's columns would come last, also in the key.
class _Round:
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True, sort_order=-3)
    round: Mapped[int] = mapped_column(primary_key=True, sort_order=-2)


class _PublicStep(_Round):
    public_step: Mapped[int] = mapped_column(primary_key=True, sort_order=-1)


class RoundRow(_Round, Base):
    """A round, and the global adapter that it ended with; round 0 holds the initial one.

    `server_state` is the server optimizer's: a blob, too. `residual` names one of a run of an
    earlier version, so that it is kept. `responses` are some of the evaluation's; being long, they
    are loaded only where they are used.
    """

    __tablename__ = "rounds"

    adapter: Mapped[str | None] = mapped_column(String(71))
    residual: Mapped[str | None] = mapped_column(String(71))
    server_state: Mapped[str | None] = mapped_column(String(71))
    means: Mapped[dict[str, Any] | None]
    drift: Mapped[dict[str, Any] | None]
    evaluation: Mapped[dict[str, Any] | None]
    responses: Mapped[list[dict[str, Any]] | None] = mapped_column(deferred=True)


class UpdateRow(_Round, Base):
    """A member's update of a round.

    `stored` is the blob: null once it is freed (see `retention`), or if a late update came without
    one.
    """

    __tablename__ = "updates"
    __table_args__ = (_retained_index("updates", "stored"),)

    member: Mapped[str] = mapped_column(String(63), primary_key=True)
    digest: Mapped[str] = mapped_column(String(71))
    stored: Mapped[str | None] = mapped_column(String(71))
    metrics: Mapped[dict[str, Any]]
    late: Mapped[bool]
    received_at: Mapped[datetime] = mapped_column(default=now)


class PublicStepRow(_PublicStep, Base):
    """A public step's exchange, from its first responses on."""

    __tablename__ = "public_steps"

    first_at: Mapped[datetime] = mapped_column(default=now)
    closed: Mapped[bool] = mapped_column(default=False)
    summary: Mapped[dict[str, Any] | None]


class SubmissionRow(_PublicStep, Base):
    """A member's responses in an exchange, with the coordinator's own verdicts (P, K).

    `correct` is null until they are verified; late ones are not verified any more. `stored` is the
    blob: null once it is freed (see `retention`). `donatable` (P, K) marks those that peers may
    get; null if nothing limits that.
    """

    __tablename__ = "submissions"
    __table_args__ = (_retained_index("submissions", "stored"),)

    member: Mapped[str] = mapped_column(String(63), primary_key=True)
    digest: Mapped[str] = mapped_column(String(71))
    stored: Mapped[str | None] = mapped_column(String(71))
    correct: Mapped[list[list[bool]] | None]
    donatable: Mapped[list[list[bool]] | None]
    late: Mapped[bool]
    received_at: Mapped[datetime] = mapped_column(default=now)


class DoubtRow(Base):
    """A receiver's findings on a donor's responses: sums for the next verdict, and verdicts."""

    __tablename__ = "doubts"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    donor: Mapped[str] = mapped_column(String(63), primary_key=True)
    receiver: Mapped[str] = mapped_column(String(63), primary_key=True)
    responses: Mapped[int] = mapped_column(BigInteger, default=0)
    other_noise: Mapped[float] = mapped_column(Double, default=0.0)
    verdicts: Mapped[int] = mapped_column(default=0)
    doubts: Mapped[int] = mapped_column(default=0)
    doubted: Mapped[bool] = mapped_column(default=False)


class TrafficRow(_Round, Base):
    """A member's bytes in a round, by kind; round -1 has the sums of all rounds."""

    __tablename__ = "traffic"

    member: Mapped[str] = mapped_column(String(63), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    bytes: Mapped[int] = mapped_column(BigInteger, default=0)


class StepRow(Base):
    """A member's figures of one step, as its heartbeat gave them; see `runs/progress/steps`."""

    __tablename__ = "steps"

    # In this order, because a page draws a few members' last rounds.
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    member: Mapped[str] = mapped_column(String(63), primary_key=True)
    round: Mapped[int] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    reward: Mapped[float | None] = mapped_column(Double)
    loss: Mapped[float | None] = mapped_column(Double)
    kl: Mapped[float | None] = mapped_column(Double)
    response_tokens: Mapped[float | None] = mapped_column(Double)
    tokens_per_second: Mapped[float | None] = mapped_column(Double)


class EventRow(Base):
    """A line of a run's log; never changed, and deleted only when its run's state is `deleted`."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), index=True)
    at: Mapped[datetime] = mapped_column(default=now)
    kind: Mapped[str] = mapped_column(String(32))
    details: Mapped[dict[str, Any]]


class LogQuotaRow(Base):
    """Lines of a run's log since a moment, `about` a member, or "" for the run itself.

    See `events.record_sparingly`.
    """

    __tablename__ = "log_quotas"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    about: Mapped[str] = mapped_column(String(63), primary_key=True)
    lines: Mapped[int]
    since: Mapped[datetime]


# Created with the table of events. A migration that recreates that table (`batch_alter_table` on
# SQLite) must recreate its triggers, too.
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
        # For each statement, so that TRUNCATE is refused, too.
        "CREATE TRIGGER events_append_only BEFORE UPDATE OR TRUNCATE ON events "
        "FOR EACH STATEMENT EXECUTE FUNCTION events_refuse_change()",
        "CREATE FUNCTION events_refuse_delete() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF {_RUN_STATE} = 'deleted' THEN RETURN OLD; END IF; "
        f"RAISE EXCEPTION '{_REFUSAL}'; END $$",
        "CREATE TRIGGER events_no_delete BEFORE DELETE ON events "
        "FOR EACH ROW EXECUTE FUNCTION events_refuse_delete()",
    ),
}
for _dialect, _statements in _TRIGGERS.items():
    for _statement in _statements:
        _trigger = DDL(_statement).execute_if(dialect=_dialect)  # type: ignore[no-untyped-call]
        event.listen(EventRow.__table__, "after_create", _trigger)
