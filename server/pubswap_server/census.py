"""What the database holds, counted for the metrics: the same from every replica."""

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pubswap_server.metrics import Metrics
from pubswap_server.state import ENDED
from pubswap_server.tables import MemberRow, RunRow, TrafficRow


@dataclass(frozen=True, slots=True)
class Census:
    """Runs by state, runs that wait for the operator, members by standing, bytes by kind."""

    runs: dict[str, int]
    stalled: int
    failing: int
    members: dict[str, int]
    transferred: dict[str, int]

    def show(self, metrics: Metrics) -> None:
        """Set the gauges."""
        for gauge, counts in (
            (metrics.runs, self.runs),
            (metrics.members, self.members),
            (metrics.transferred, self.transferred),
        ):
            gauge.clear()
            for label, number in counts.items():
                gauge.labels(label).set(number)
        metrics.stalled.set(self.stalled)
        metrics.failing.set(self.failing)


def take_census(session: Session) -> Census:
    """Count."""
    states = session.execute(select(RunRow.state, func.count()).group_by(RunRow.state))
    stalled = session.scalar(
        select(func.count()).where(RunRow.waiting_for.is_not(None), RunRow.state.not_in(ENDED))
    )
    failing = session.scalar(
        select(func.count()).where(RunRow.failure.is_not(None), RunRow.state.not_in(ENDED))
    )
    standings = session.execute(
        select(MemberRow.active, MemberRow.suspended, func.count()).group_by(
            MemberRow.active, MemberRow.suspended
        )
    )
    members = {"active": 0, "suspended": 0, "revoked": 0}
    for active, suspended, number in standings:
        members["revoked" if not active else "suspended" if suspended else "active"] += number
    sizes = session.execute(
        select(TrafficRow.kind, func.sum(TrafficRow.bytes)).group_by(TrafficRow.kind)
    )
    return Census(
        runs={row[0]: row[1] for row in states},
        stalled=stalled or 0,
        failing=failing or 0,
        members=members,
        transferred={row[0]: int(row[1]) for row in sizes},
    )
