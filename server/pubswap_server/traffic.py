"""Bytes of adapters and responses, by member and round."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal, TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from pubswap_protocol.messages import Traffic
from pubswap_server.tables import TrafficRow

K = TypeVar("K")

Kind = Literal["adapters_up", "adapters_down", "responses_up", "responses_down"]


def count(session: Session, run: str, round_: int, member: str, kind: Kind, size: int) -> None:
    """Add bytes to a member's counter."""
    row = session.get(TrafficRow, (run, round_, member, kind), with_for_update=True)
    if row is None:
        session.add(TrafficRow(run_id=run, round=round_, member=member, kind=kind, bytes=size))
    else:
        row.bytes += size


def by_round(session: Session, run: str) -> dict[int, Traffic]:
    """The bytes of all members, by round."""
    return _sums((row.round, row.kind, row.bytes) for row in _rows(session, run))


def by_member(session: Session, run: str) -> dict[str, Traffic]:
    """The bytes of all rounds, by member."""
    return _sums((row.member, row.kind, row.bytes) for row in _rows(session, run))


def _rows(session: Session, run: str) -> Iterable[TrafficRow]:
    return session.scalars(select(TrafficRow).where(TrafficRow.run_id == run))


def _sums(entries: Iterable[tuple[K, str, int]]) -> dict[K, Traffic]:
    sums: dict[K, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for key, kind, size in entries:
        sums[key][kind] += size
    return {key: Traffic(**kinds) for key, kinds in sums.items()}
