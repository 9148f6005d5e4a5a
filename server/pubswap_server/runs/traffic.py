"""Bytes of adapters and responses, by member and round.

Each member's sums over all rounds are stored as round TOTAL, because a run may have millions of
rows.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Literal, TypeVar

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from pubswap_protocol.messages import Traffic
from pubswap_server.database.engine import execute_many, inserting
from pubswap_server.database.tables import RunRow, TrafficRow

K = TypeVar("K")

TOTAL = -1

Kind = Literal["adapters_up", "adapters_down", "responses_up", "responses_down"]
Key = tuple[str, int, str, Kind]  # run, round, member and kind


def count(session: Session, sizes: Mapping[Key, int]) -> None:
    """Add these bytes to the sums of their round and of all rounds."""
    sums = Counter[Key]()
    for (run, round_, member, kind), size in sizes.items():
        sums[run, round_, member, kind] += size
        sums[run, TOTAL, member, kind] += size
    names = ("run_id", "round", "member", "kind")
    insert = inserting(session, TrafficRow)
    added = {"bytes": TrafficRow.bytes + insert.excluded.bytes}
    # Always in the same order, so that two replicas cannot deadlock.
    rows = [{**dict(zip(names, key, strict=True)), "bytes": sums[key]} for key in sorted(sums)]
    execute_many(session, insert.on_conflict_do_update(index_elements=names, set_=added), rows)


def by_round(session: Session, run: str, first: int, last: int) -> dict[int, Traffic]:
    """The bytes of all members in the rounds from `first` to `last`."""
    within = TrafficRow.round.between(first, last)
    return _sums(session, TrafficRow.round, TrafficRow.run_id == run, within)


def by_member(session: Session, run: str) -> dict[str, Traffic]:
    return _sums(session, TrafficRow.member, TrafficRow.run_id == run, TrafficRow.round == TOTAL)


def total(session: Session, run: str) -> int:
    """The bytes of all members in all rounds, sent and received."""
    query = select(func.sum(TrafficRow.bytes)).where(TrafficRow.run_id == run)
    return int(session.scalar(query.where(TrafficRow.round == TOTAL)) or 0)


def by_kind(session: Session) -> dict[str, int]:
    query = select(TrafficRow.kind, func.sum(TrafficRow.bytes)).where(TrafficRow.round == TOTAL)
    query = query.where(TrafficRow.run_id.in_(select(RunRow.id)))  # the index begins with the run
    return {kind: int(size) for kind, size in session.execute(query.group_by(TrafficRow.kind))}


def _sums(
    session: Session, key: InstrumentedAttribute[K], *where: ColumnElement[bool]
) -> dict[K, Traffic]:
    sums: dict[K, dict[str, int]] = defaultdict(dict)
    query = select(key, TrafficRow.kind, func.sum(TrafficRow.bytes)).where(*where)
    for group, kind, size in session.execute(query.group_by(key, TrafficRow.kind)):
        sums[group][kind] = int(size)
    return {group: Traffic(**kinds) for group, kinds in sums.items()}
