"""Rounds of 64, 250 and 1,000 members with public steps: CPU, memory, heartbeats, blocks.

    PYTHONPATH=tests python benchmarks/scale.py           # into results/scale.json
    PYTHONPATH=tests python benchmarks/scale.py --members 64,250  # keeps the other sizes
    PYTHONPATH=tests python benchmarks/scale.py --quick   # a few members; saves nothing

Each member hands in 1 MB, and 8 prompts x 8 responses in each of 4 public steps. Every second one
reports on some 90 donors, if there are so many. This runs once on a real `pubswap serve` with its
defaults, SQLite and a local folder, and once on two of them with PostgreSQL, which share the folder
and half the members each. Members run on the same cores. Peak memory is one server's own
(anonymous) memory. CPU seconds are of all servers, and of PostgreSQL if there is one; growth is
theirs from one size to the next, relative to linear growth. A delay of the event loop includes its
waits for a core, a block does not.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
from coordination.memory import Watch
from coordination.results import machine
from coordination.scale import growth
from coordination.serving import MeasuredCoordinator, opened, seated, serving, start
from crowd import MeasuredCrowd, settings
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from pubswap_protocol import paths
from support.coordinator.postgres import postgres

RESULT = Path(__file__).parent / "results" / "scale.json"
MEMBERS, QUICK_MEMBERS = (64, 250, 1000), (4, 8)
MEGABYTES = 1
LOAD = {"429", "503", "507"}  # statuses of requests refused because of load
LINES = {
    "members_growth": "<= 1.2",
    "slowest_heartbeat_seconds": "<= 2",
    "longest_block_seconds": "<= 0.1",
    "longest_delay_seconds": "reported",
    "refused_for_load": "0",
    "peak_mb": "reported",
}


@contextmanager
def sqlite(folder: Path) -> Iterator[tuple[list[MeasuredCoordinator], list[psutil.Process]]]:
    """One coordinator with its defaults, and the processes that work for it."""
    with serving(folder) as coordinator:
        yield [coordinator], [psutil.Process(coordinator.pid)]


@contextmanager
def replicas(folder: Path) -> Iterator[tuple[list[MeasuredCoordinator], list[psutil.Process]]]:
    """Two coordinators on PostgreSQL, sharing one folder."""
    with postgres() as server, ExitStack() as stack:
        database = ["--database-url", server.new_database()]
        both = [stack.enter_context(serving(folder, database)) for _ in range(2)]
        yield both, [psutil.Process(pid) for pid in (*(one.pid for one in both), server.pid)]


WAYS = {"one process, SQLite": sqlite, "two processes, PostgreSQL": replicas}


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """CPU seconds of these processes and their children, including ended ones."""
    family = [p for process in processes for p in (process, *process.children(recursive=True))]
    return sum(sum(process.cpu_times()[:2]) for process in family)


def measured(way: str, members: int, folder: Path) -> dict[str, Any]:
    """Measure one round after a warm-up round."""
    with WAYS[way](folder) as (coordinators, processes):
        first = coordinators[0]
        run = opened(first, MEGABYTES, clients=members, rounds=3, **settings())
        seats = [
            replace(seat, url=coordinators[number % len(coordinators)].url)
            for number, seat in enumerate(seated(first, run))
        ]
        with MeasuredCrowd(seats, run) as crowd, Watch(first.pid) as watch:
            start(first, run)
            crowd.round(1)
            cpu_at_start, began = cpu_seconds(processes), time.monotonic()
            crowd.round(2)
            return {
                "cpu_seconds": cpu_seconds(processes) - cpu_at_start,
                "seconds": time.monotonic() - began,
                "heartbeats": len(crowd.beats),
                "slowest_heartbeat_seconds": max(crowd.beats),
                "longest_block_seconds": max(one.longest_block for one in coordinators),
                "longest_delay_seconds": max(one.longest_delay for one in coordinators),
                "refused_for_load": sum(map(refused, coordinators)),
                "peak_mb": watch.entry()["peak_mb"],
            }


def refused(coordinator: MeasuredCoordinator) -> float:
    """Number of requests refused because there were too many."""
    text = httpx.get(coordinator.url + paths.METRICS).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "pubswap_http_requests_total" and sample.labels["status"] in LOAD
    )


def figures(details: dict[str, dict[str, dict[str, float]]]) -> dict[str, float]:
    """The worst figures over both ways and all sizes."""
    entries = [entry for sizes in details.values() for entry in sizes.values()]
    growths = [
        growth({int(n): entry["cpu_seconds"] for n, entry in sizes.items()})
        for sizes in details.values()
        if len(sizes) > 1
    ]
    return {"members_growth": max(growths, default=0.0)} | {
        name: max(entry[name] for entry in entries) for name in [*LINES][1:]
    }


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(int(size) for size in text.split(",") if size.isdigit())
    if not sizes or set(sizes) - set(MEMBERS):
        raise argparse.ArgumentTypeError(f"{text}: the sizes are {MEMBERS}")
    return sizes


def show(console: Console, result: dict[str, float], details: dict[str, Any]) -> None:
    """Print each figure, and each round."""
    table = Table("", "measured", "to reach", title="Rounds of many members")
    for name, goal in LINES.items():
        table.add_row(name.replace("_", " "), f"{result[name]:.3g}", goal)
    console.print(table)
    seconds = ("slowest heartbeat, s", "longest block, s", "longest delay, s")
    rounds = Table("members", "", "CPU s", "s", "MB", *seconds)
    for way, sizes in details.items():
        for members, entry in sizes.items():
            names = ("cpu_seconds", "seconds", "peak_mb")
            names += ("slowest_heartbeat_seconds", "longest_block_seconds", "longest_delay_seconds")
            rounds.add_row(members, way, *(f"{entry[name]:.3g}" for name in names))
    console.print(rounds)


def main() -> None:
    """Measure, save, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="A few members; saves nothing.")
    parser.add_argument("--members", type=_sizes, help="Some of the sizes, such as 64,250.")
    chosen, console = parser.parse_args(), Console()
    sizes = QUICK_MEMBERS if chosen.quick else chosen.members or MEMBERS
    # Exit in order on SIGTERM, so that all child processes are ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    saved = json.loads(RESULT.read_text())["details"] if chosen.members else {}
    details: dict[str, Any] = {way: saved[way] for way in WAYS if way in saved}
    with tempfile.TemporaryDirectory(prefix="pubswap-scale-") as scratch:
        for way in WAYS:
            entries = details.setdefault(way, {})
            for members in sizes:
                entry = measured(way, members, Path(scratch) / f"{way[:3]}{members}")
                entries[str(members)] = entry
                console.log(f"{members} members, {way}: {entry}")
                rounded = {name: round(value, 4) for name, value in figures(details).items()}
                if not chosen.quick:  # save now, in case it is stopped later
                    result = {**rounded, "details": details, "machine": machine()}
                    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    show(console, rounded, details)


if __name__ == "__main__":
    main()
