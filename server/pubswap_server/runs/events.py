"""A run's append-only log."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Select, literal, select
from sqlalchemy.orm import Session

from pubswap_protocol.messages import Event
from pubswap_server.clock import now
from pubswap_server.database.engine import changed, held
from pubswap_server.database.tables import EventRow, LogQuotaRow, RunRow

PAGE = 500
# Events of one member that change no other member's task. Only the conductor is woken, and what it
# decides is an event of its own. Every member causes these, so waking all members would be costly.
NOT_AWAITED = frozenset(
    {
        *("invited", "enrolled", "update", "responses", "exchange began", "evaluated"),
        "suspicious answers",
        *("responses refused", "responses withheld", "exchanges refused"),
    }
)
ROUND_BEGINS = ("started", "aggregated", "rolled back")
INPUT_DAMAGED = "input damaged"
LEFT_OUT = "lines left out"
# Lines of one member, or about one run's waits, that a member can cause as often as it likes.
LINES_A_DAY = 100
_DAY = timedelta(days=1)
_GOES_ON = ("responses", "exchange closed", *ROUND_BEGINS)


def record(session: Session, run: str, kind: str, **details: Any) -> None:
    """Append an event in the transaction of its cause, and wake those that wait for the run.

    The run stays locked until the transaction ends. So ids are committed in order, and a reader
    that asks for events after its last id misses none.
    """
    changed(session, run, awaited=kind not in NOT_AWAITED)
    _lock(session, run)
    session.add(EventRow(run_id=run, kind=kind, details=details))


def record_sparingly(session: Session, run: str, kind: str, **details: Any) -> bool:
    """Append an event that a member can cause as often as it likes; returns whether it did.

    The log is never shortened, so the `member` of the details gets a number of lines a day, and so
    do events without one. Then one line says that more are left out. Waiters are woken in any case.
    """
    changed(session, run)
    _lock(session, run)
    about = details.get("member", "")
    quota = session.get(LogQuotaRow, (run, about))
    if quota is None or now() - quota.since >= _DAY:
        quota = session.merge(LogQuotaRow(run_id=run, about=about, lines=0, since=now()))
    quota.lines += 1
    if quota.lines <= LINES_A_DAY:
        record(session, run, kind, **details)
    elif quota.lines == LINES_A_DAY + 1:
        record(session, run, LEFT_OUT, about=about or kind, lines_a_day=LINES_A_DAY)
    return quota.lines <= LINES_A_DAY


def _lock(session: Session, run: str) -> None:
    if run not in held(session):
        with session.no_autoflush:  # the run is locked before the rows that depend on it
            # Fetch the row, because an open cursor would keep SQLite at an old snapshot.
            session.scalar(select(RunRow.id).where(RunRow.id == run).with_for_update())
        held(session).add(run)


def events_after(session: Session, run: str, after: int, kind: str | None = None) -> list[Event]:
    """At most 500 events with larger ids, in order; only those of `kind`, if given."""
    # PostgreSQL refuses a number that an INTEGER column cannot hold, unless it has its own type.
    query = select(EventRow).where(EventRow.run_id == run, EventRow.id > literal(after, BigInteger))
    if kind is not None:
        query = query.where(EventRow.kind == kind)
    return [_event(row) for row in session.scalars(query.order_by(EventRow.id).limit(PAGE))]


def last(session: Session, run: str, count: int, without: Collection[str] = ()) -> list[Event]:
    """The newest events first, without those of some kinds."""
    query = select(EventRow).where(EventRow.run_id == run).order_by(EventRow.id.desc())
    if without:
        query = query.where(EventRow.kind.not_in(without))
    return [_event(row) for row in session.scalars(query.limit(count))]


def kinds(session: Session, run: str) -> list[str]:
    query = select(EventRow.kind).where(EventRow.run_id == run).distinct()
    return sorted(session.scalars(query))


def _event(row: EventRow) -> Event:
    return Event(id=row.id, at=row.at, kind=row.kind, details=row.details)


def last_at(session: Session, run: str, kinds: Collection[str]) -> datetime:
    """The time of the last event of these kinds; there must be one."""
    return session.scalars(_last_of(run, kinds)).one().at


def damaged_input(session: Session, run: str) -> Event | None:
    """The last event about an unreadable input of the run, unless the run has gone on since."""
    row = session.scalars(_last_of(run, (INPUT_DAMAGED, *_GOES_ON))).first()
    return _event(row) if row is not None and row.kind == INPUT_DAMAGED else None


def details_since(session: Session, run: str, kind: str, last: str) -> list[dict[str, Any]]:
    """The details of the events of a kind since the `last` one of another kind, in order."""
    since = _last_of(run, (last,)).with_only_columns(EventRow.id).scalar_subquery()
    query = select(EventRow.details).where(EventRow.run_id == run, EventRow.kind == kind)
    return list(session.scalars(query.where(EventRow.id > since).order_by(EventRow.id)))


def _last_of(run: str, kinds: Collection[str]) -> Select[EventRow]:
    query = select(EventRow).where(EventRow.run_id == run, EventRow.kind.in_(kinds))
    return query.order_by(EventRow.id.desc()).limit(1)


def latest(session: Session) -> datetime | None:
    """The time of the last event of any run; None before the first."""
    return session.scalar(select(EventRow.at).order_by(EventRow.id.desc()).limit(1))
