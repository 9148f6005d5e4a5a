"""Bytes of adapters and responses, by member and round.

Each member's sums over all rounds are rows of their own, of round TOTAL: a run may have millions.
"""

from collections import defaultdict
from typing import Literal, TypeVar

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from pubswap_protocol.messages import Traffic
from pubswap_server.database.tables import RunRow, TrafficRow

K = TypeVar("K")

TOTAL = -1

Kind = Literal["adapters_up", "adapters_down", "responses_up", "responses_down"]


def count(session: Session, run: str, round_: int, member: str, kind: Kind, size: int) -> None:
    for number in (round_, TOTAL):
        row = session.get(TrafficRow, (run, number, member, kind), with_for_update=True)
        if row is None:
            session.add(TrafficRow(run_id=run, round=number, member=member, kind=kind, bytes=size))
        else:
            row.bytes += size


def by_round(session: Session, run: str, first: int, last: int) -> dict[int, Traffic]:
    """The bytes of all members in the rounds from `first` to `last`."""
    within = TrafficRow.round.between(first, last)
    return _sums(session, TrafficRow.round, TrafficRow.run_id == run, within)


def by_member(session: Session, run: str) -> dict[str, Traffic]:
    return _sums(session, TrafficRow.member, TrafficRow.run_id == run, TrafficRow.round == TOTAL)


def by_kind(session: Session) -> dict[str, int]:
    query = select(TrafficRow.kind, func.sum(TrafficRow.bytes)).where(TrafficRow.round == TOTAL)
    query = query.where(TrafficRow.run_id.in_(select(RunRow.id)))  # the key begins with the run
    return {kind: int(size) for kind, size in session.execute(query.group_by(TrafficRow.kind))}


def _sums(
    session: Session, key: InstrumentedAttribute[K], *where: ColumnElement[bool]
) -> dict[K, Traffic]:
    sums: dict[K, dict[str, int]] = defaultdict(dict)
    query = select(key, TrafficRow.kind, func.sum(TrafficRow.bytes)).where(*where)
    for group, kind, size in session.execute(query.group_by(key, TrafficRow.kind)):
        sums[group][kind] = int(size)
    return {group: Traffic(**kinds) for group, kinds in sums.items()}
