"""A thousand long polls, all answered by one event."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from coordination.fleet import MeasuredFleet
from coordination.serving import MeasuredCoordinator, opened, seated, serving
from coordination.telling import Tell
from coordination.waiting import WAIT_SECONDS, Waiting
from pubswap_protocol import paths

CLIENTS, QUICK_CLIENTS = 1000, 20
REPEATS, QUICK_REPEATS = 5, 2
QUIET_SECONDS = 0.5
SETTLE_SECONDS = WAIT_SECONDS - 10.0


def measure(quick: bool, scratch: Path, tell: Tell) -> dict[str, Any]:
    """Measure the start of the run, and then its resumption after pauses."""
    clients, repeats = (QUICK_CLIENTS, QUICK_REPEATS) if quick else (CLIENTS, REPEATS)
    with serving(scratch / "polls") as coordinator:
        run = opened(coordinator, 1, clients=clients)
        tell(f"{clients} members enrol")
        seats = seated(coordinator, run)
        with MeasuredFleet([partial(Waiting, seats)]) as fleet:
            events = [_event(coordinator, fleet, run.id, paths.RUN_START, tell)]
            for _ in range(repeats - 1):
                coordinator.api.move_run(run.id, paths.RUN_PAUSE)
                events.append(_event(coordinator, fleet, run.id, paths.RUN_RESUME, tell))
        threads = psutil.Process(coordinator.pid).num_threads()
    return {"clients": clients, "events": events, "threads_of_the_server": threads}


def _event(
    coordinator: MeasuredCoordinator, fleet: MeasuredFleet, run: str, path: str, tell: Tell
) -> dict[str, float | str]:
    """Poll, wait until all wait, move the run; seconds from then to the first and last reply."""
    name = path.rsplit("/", 1)[-1]
    tell(f"long polls: {name}")
    fleet.prepare(1)
    settled = _settle(coordinator.pid)
    fleet.go()
    time.sleep(QUIET_SECONDS)
    opened_at = time.monotonic()
    coordinator.api.move_run(run, path)
    moved = time.monotonic() - opened_at
    went = fleet.wait(opened_at).measured[0]
    fleet.check()
    assert went["first"] >= opened_at, "a poll was answered before the run moved"
    return {
        "event": name,
        "first": went["first"] - opened_at,
        "last": went["last"] - opened_at,
        "operator": moved,
        "until_all_waited": settled,
    }


def _settle(pid: int) -> float:
    """Seconds until the server is idle, having read every request."""
    process, began = psutil.Process(pid), time.monotonic()
    while True:
        cpu_at_start = sum(process.cpu_times()[:2])
        time.sleep(QUIET_SECONDS)
        if sum(process.cpu_times()[:2]) - cpu_at_start <= 0.1 * QUIET_SECONDS:
            return time.monotonic() - began
        assert time.monotonic() - began < SETTLE_SECONDS, "the server does not become idle"


def figures(details: dict[str, Any]) -> dict[str, float]:
    """The slowest reply to the slowest event."""
    return {"long_poll_seconds": max(event["last"] for event in details["events"])}
