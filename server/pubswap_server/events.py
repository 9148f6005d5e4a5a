"""A run's append-only log."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from pubswap_protocol.messages import Event
from pubswap_server.tables import EventRow

PAGE = 500


def record(session: Session, run: str, kind: str, **details: Any) -> None:
    """Append an event in the transaction of what it tells of."""
    session.add(EventRow(run_id=run, kind=kind, details=details))


def events_after(session: Session, run: str, after: int) -> list[Event]:
    """At most 500 events with larger ids, in order."""
    rows = session.scalars(
        select(EventRow)
        .where(EventRow.run_id == run, EventRow.id > after)
        .order_by(EventRow.id)
        .limit(PAGE)
    )
    return [Event(id=row.id, at=row.at, kind=row.kind, details=row.details) for row in rows]


def last_at(session: Session, run: str, kinds: Collection[str]) -> datetime:
    """When the last event of these kinds was; there must be one."""
    query = select(EventRow.at).where(EventRow.run_id == run, EventRow.kind.in_(kinds))
    return session.scalars(query.order_by(EventRow.id.desc()).limit(1)).one()
