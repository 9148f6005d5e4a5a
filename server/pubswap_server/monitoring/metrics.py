"""Prometheus metrics; routes are labelled by their templates, never by paths."""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.orm import Session

from pubswap_protocol.messages import RunState
from pubswap_server.database.tables import MemberRow, RunRow
from pubswap_server.runs.state import ENDED
from pubswap_server.runs.traffic import Kind, by_kind

# Rounds take hours, exchanges minutes, tests fractions of a second.
MINUTES = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600)

LOOK_SECONDS = 0.02
LATE = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        seconds = partial(Histogram, registry=self.registry)
        self.requests = counter(
            "pubswap_http_requests_total",
            "Requests by route template, method and status.",
            ["route", "method", "status"],
        )
        self.seconds = seconds(
            "pubswap_http_request_seconds", "Time to answer, long polls included.", ["route"]
        )
        self.body_bytes = counter(
            "pubswap_http_body_bytes_total",
            "Body bytes by route template, in and out.",
            ["route", "direction"],
        )
        self.aggregation_seconds = seconds(
            "pubswap_aggregation_seconds", "Time to average a round."
        )
        self.round_seconds = seconds(
            "pubswap_round_seconds",
            "Time from a round's start to its published adapter.",
            buckets=MINUTES,
        )
        self.exchange_seconds = seconds(
            "pubswap_exchange_seconds",
            "Time from an exchange's first responses to its end.",
            buckets=MINUTES,
        )
        self.loop_late = seconds(
            "pubswap_event_loop_late_seconds",
            "Delay of the event loop, measured every 0.02 s.",
            buckets=LATE,
        )
        self.loop_longest = gauge(
            "pubswap_event_loop_longest_seconds", "Longest delay of the event loop since the start."
        )
        self.loop_blocked = gauge(
            "pubswap_event_loop_blocked_seconds",
            "Longest delay of the event loop, without its waits for a core.",
        )
        self.waiting = gauge("pubswap_long_polls", "Long polls that are waiting.")
        self.backlog = gauge("pubswap_conductor_backlog", "Runs that the conductor is processing.")
        self.runs = gauge("pubswap_runs", "Runs by state.", ["state"])
        self.stalled = gauge("pubswap_runs_stalled", "Runs that wait for the operator.")
        self.failing = gauge("pubswap_runs_failing", "Runs whose next move failed several times.")
        self.members = gauge(
            "pubswap_members",
            "Members by standing: active, away by their own policy, suspended or revoked.",
            ["standing"],
        )
        self.transferred = gauge(
            "pubswap_transferred_bytes",
            "Bytes of adapters and responses in total, by kind, over all replicas.",
            ["kind"],
        )

    def read_rows(self, session: Session) -> None:

        def unfinished(where: ColumnElement[bool]) -> int:
            query = select(func.count()).where(where, RunRow.state.not_in(ENDED))
            return session.scalars(query).one()

        states = session.execute(select(RunRow.state, func.count()).group_by(RunRow.state))
        _set(self.runs, RunState, states)
        self.stalled.set(unfinished(RunRow.waiting_for.is_not(None)))
        self.failing.set(unfinished(RunRow.failure.is_not(None)))
        standing = case(
            (MemberRow.active.is_(False), "revoked"),
            (MemberRow.suspended, "suspended"),
            (MemberRow.away.is_not(None), "away"),
            else_="active",
        )
        members = session.execute(select(standing, func.count()).group_by(standing))
        _set(self.members, ("active", "away", "suspended", "revoked"), members)
        _set(self.transferred, get_args(Kind), by_kind(session).items())

    def text(self) -> bytes:
        return generate_latest(self.registry)


def _set(gauge: Gauge, labels: Iterable[str], rows: Iterable[Any]) -> None:
    numbers = {label: number for label, number in rows}  # noqa: C416 - rows are not pairs to mypy
    for label in labels:
        gauge.labels(label).set(int(numbers.get(label, 0)))


async def watch_loop(metrics: Metrics) -> None:
    """Measure how long the event loop is delayed, because no request proceeds meanwhile.

    A delay in which Linux gave its thread no core is no fault of this process.
    """
    loop = asyncio.get_running_loop()
    longest = longest_blocked = 0.0
    with _waits_for_a_core() as waited:
        while True:
            due, at_start = loop.time() + LOOK_SECONDS, waited()
            await asyncio.sleep(LOOK_SECONDS)
            late = loop.time() - due
            metrics.loop_late.observe(late)
            if late > longest:
                longest = late
                metrics.loop_longest.set(longest)
            # Some waits may have been before `due`; count no more of them than is certain.
            blocked = late - max(0.0, waited() - at_start - LOOK_SECONDS)
            if blocked > longest_blocked:
                longest_blocked = blocked
                metrics.loop_blocked.set(longest_blocked)


@contextmanager
def _waits_for_a_core() -> Iterator[Callable[[], float]]:
    """A function that returns how long this thread has waited for a core; 0.0 if unknown."""
    try:
        file = Path("/proc/thread-self/schedstat").open("rb", buffering=0)  # noqa: SIM115
    except OSError:
        yield lambda: 0.0
        return
    with file:
        # CPU time, time waited on a run queue (both in nanoseconds), and the number of timeslices.
        yield lambda: int(os.pread(file.fileno(), 100, 0).split()[1]) / 1e9
