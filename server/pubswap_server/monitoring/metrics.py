"""Prometheus metrics; routes are labelled by their templates, never by paths."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pubswap_server.database.tables import MemberRow, RunRow, TrafficRow
from pubswap_server.runs.state import ENDED

# Rounds take hours, exchanges minutes, tests fractions of a second.
MINUTES = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600)


class Metrics:
    """One application's registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "pubswap_http_requests_total",
            "Requests by route template, method and status.",
            ["route", "method", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "pubswap_http_request_seconds",
            "Time to answer, long polls included.",
            ["route"],
            registry=self.registry,
        )
        self.aggregation_seconds = Histogram(
            "pubswap_aggregation_seconds", "Time to average a round.", registry=self.registry
        )
        self.body_bytes = Counter(
            "pubswap_http_body_bytes_total",
            "Bytes of bodies by route template, in and out.",
            ["route", "direction"],
            registry=self.registry,
        )
        self.round_seconds = Histogram(
            "pubswap_round_seconds",
            "From a round's first task to its published adapter.",
            buckets=MINUTES,
            registry=self.registry,
        )
        self.drift_no_number = Counter(
            "pubswap_drift_no_number_total",
            "Published rounds whose clients' drift is no number.",
            registry=self.registry,
        )
        self.exchange_seconds = Histogram(
            "pubswap_exchange_seconds",
            "From an exchange's first responses to its end.",
            buckets=MINUTES,
            registry=self.registry,
        )
        self.waiting = Gauge(
            "pubswap_long_polls", "Long polls that wait now.", registry=self.registry
        )
        self.backlog = Gauge(
            "pubswap_conductor_backlog", "Runs that are being looked at.", registry=self.registry
        )
        self.runs = Gauge("pubswap_runs", "Runs by state.", ["state"], registry=self.registry)
        self.stalled = Gauge(
            "pubswap_runs_stalled", "Runs that wait for the operator.", registry=self.registry
        )
        self.failing = Gauge(
            "pubswap_runs_failing",
            "Runs whose next move failed several times.",
            registry=self.registry,
        )
        self.members = Gauge(
            "pubswap_members",
            "Members by standing: active, suspended or revoked.",
            ["standing"],
            registry=self.registry,
        )
        self.transferred = Gauge(
            "pubswap_transferred_bytes",
            "Bytes of adapters and responses since ever, by kind, of all replicas together.",
            ["kind"],
            registry=self.registry,
        )

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)


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
