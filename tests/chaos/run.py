"""`make chaos`: each fault many times over; a table, and results.json beside this file.

python tests/chaos/run.py [--only NAME ...] [--seed N] [--count N]
"""

import argparse
import importlib
import inspect
import json
import logging
import os
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

RESULTS = Path(__file__).with_name("results.json")
MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class PlannedFault:
    """What is done to the coordinator, in the module chaos.NAME, how often, and what must hold."""

    name: str
    count: int
    promise: str


FAULTS = (
    PlannedFault("coordinator", 200, "SIGKILL at named points and random times: same adapters"),
    PlannedFault("order", 300, "each receipt after its fsyncs and its commit (strace)"),
    PlannedFault("cuts", 1000, "cut connections: no byte wrong, little sent again"),
    PlannedFault("bucket", 300, "cut connections to the bucket: no byte wrong, all goes on"),
    PlannedFault("postgres", 50, "PostgreSQL killed: receipts hold"),
    PlannedFault("replica", 100, "a replica stopped and continued after its lease: nothing stale"),
    PlannedFault("disk", 20, "disk full: refused in words, and on when there is room"),
    PlannedFault(
        "room", 40, "adapters that nobody uses, until there is no more room: honest rounds go on"
    ),
    PlannedFault("clock", 8, "the wall clock jumps by a day: same outcome"),
    PlannedFault("model", 10_000, "sequences of requests and crashes against a model"),
    PlannedFault("slow", 20, "a member ten times slower: rounds close on time without it"),
    PlannedFault("bombs", 24, "answers no verifier gets through: others wait 2 s more at most"),
    PlannedFault(
        "hostile_numbers", 102, "extreme numbers against every rule: refused, or a way on"
    ),
    PlannedFault("corrupt", 60, "flipped bits: detected, not served, asked for again"),
    PlannedFault(
        "framing", 1000, "bytes that two parsers might cut differently: no body is a request"
    ),
    PlannedFault("fuzz", 1_000_000, "hostile safetensors: refused quickly and cheaply"),
)


def main() -> int:
    """Run the faults that are asked for; returns 1 if one failed or lost something."""
    given = _arguments()
    logging.getLogger("pubswap_client").setLevel(logging.ERROR)  # retries are what is expected
    # An installed plugin of some tests, and the products' own workers, import as this does.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    console = Console()
    results = _results()
    notes: dict[str, str] = {}
    for fault in FAULTS:
        if given.only and fault.name not in given.only:
            continue
        note, found = _run(fault, given.seed, given.count or fault.count, console)
        notes[fault.name] = note
        if found is not None:
            # Read again: another run, of other faults, may have written meanwhile.
            results = _results() | {fault.name: found}
            RESULTS.write_text(json.dumps(_ordered(results), indent=2) + "\n")
    console.print(_table(results, notes))
    lost = any(results.get(name, {}).get("lost") for name in notes)
    return int(lost or "failed" in notes.values())


def _results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--seed", type=int, default=1, help="the same seed plans the same faults")
    parser.add_argument("--count", type=int, help="how often, in place of each fault's own count")
    return parser.parse_args()


def _run(
    fault: PlannedFault, seed: int, count: int, console: Console
) -> tuple[str, dict[str, Any] | None]:
    """What became of it in a word, and its figures."""
    if find_spec(f"chaos.faults.{fault.name}") is None:
        return "not here", None
    module = importlib.import_module(f"chaos.faults.{fault.name}")
    why = getattr(module, "missing", lambda: None)()
    if why:
        return f"left out: {why}", None
    started = time.monotonic()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    parent = MEMORY if MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix=f"chaos-{fault.name}-", dir=parent) as folder,
        Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as shown,
    ):
        task = shown.add_task(fault.name, total=count)
        options: dict[str, Any] = {}
        if "progress" in inspect.signature(module.run).parameters:
            options["progress"] = lambda done: shown.update(task, completed=done)
        try:
            found: dict[str, Any] = module.run(count, seed, Path(folder), **options)
        except Exception:
            shown.stop()
            console.print(traceback.format_exc(), markup=False, highlight=False)
            _print_logs(Path(folder), console)
            return "failed", None
    seconds = round(time.monotonic() - started, 1)
    return "", {**found, "seed": seed, "seconds": seconds}


def _print_logs(folder: Path, console: Console) -> None:
    """The ends of the processes' logs, which go with the folder."""
    for log in sorted(folder.rglob("*.log")):
        console.print(f"== {log.name}", markup=False)
        lines = log.read_text(errors="replace").splitlines()[-30:]
        console.print("\n".join(lines), markup=False, highlight=False)


def _ordered(results: dict[str, Any]) -> dict[str, Any]:
    order = [fault.name for fault in FAULTS]
    return {name: results[name] for name in order if name in results}


def _table(results: dict[str, Any], notes: dict[str, str]) -> Table:
    table = Table("fault", "tried", "lost", "seconds", "figures", title="Chaos")
    for fault in FAULTS:
        if fault.name not in notes:
            continue
        found = results.get(fault.name, {}) if not notes[fault.name] else {}
        lost = found.get("lost")
        figures = [
            f"{key} {_short(value)}"
            for key, value in found.items()
            if key not in ("tried", "lost", "seconds", "seed") and not isinstance(value, list)
        ]
        table.add_row(
            f"[bold]{fault.name}[/]\n{fault.promise}",
            str(found.get("tried", notes[fault.name])),
            "" if lost is None else f"[{'red' if lost else 'green'}]{lost}",
            str(found.get("seconds", "")),
            "\n".join(figures),
        )
    return table


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
