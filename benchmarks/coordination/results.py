"""The figures as JSON, merged part by part, and as a table."""

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from coordination import (
    aggregation,
    bucket,
    exchange,
    heartbeats,
    memory,
    polls,
    rounds,
    scale,
    transfers,
)

PATH = Path(__file__).parents[1] / "results" / "coordinator.json"
PACKAGES = (
    "fastapi",
    "starlette",
    "uvicorn",
    "uvloop",
    "httptools",
    "sqlalchemy",
    "httpx",
    "numpy",
)
PEERS = {"flwr": "1.42.0", "nvflare": "2.9.0"}
FIGURES = {
    "memory": memory.figures,
    "transfers": transfers.figures,
    "aggregation": aggregation.figures,
    "heartbeats": heartbeats.figures,
    "exchange": exchange.figures,
    "polls": polls.figures,
    "rounds": rounds.figures,
    "scale": scale.figures,
    "bucket": bucket.figures,
}
ORDER = (
    "round_vs_flower",
    "round_vs_nvflare",
    "round_vs_floor",
    "server_peak_mb",
    "upload_vs_nginx",
    "download_vs_nginx",
    "aggregate_vs_numpy",
    "slowest_heartbeat_seconds",
    "exchange_seconds",
    "long_poll_seconds",
    "scale_members_growth",
    "scale_rounds_growth",
    "bucket_cpu_ratio",
)
# The label of each figure, and the goal it must reach.
LINES = {
    "round_vs_flower": ("a round: Flower's seconds / ours, worst size", ">= 30"),
    "round_vs_nvflare": ("a round: NVFlare's seconds / ours, worst size", ">= 2.5"),
    "round_vs_floor": ("a round: our seconds / the floor's, worst size", "reported"),
    "server_peak_mb": ("server's anonymous memory at most, MB", "<= 150"),
    "upload_vs_nginx": ("upload: our rate / nginx's", ">= 0.45"),
    "download_vs_nginx": ("download: our rate / nginx's", ">= 0.5"),
    "aggregate_vs_numpy": (
        "mean: our rate / numpy's mean of the arrays in memory, worst size",
        ">= 0.6",
    ),
    "slowest_heartbeat_seconds": ("slowest of 16 clients' heartbeats, s", "<= 1"),
    "exchange_seconds": ("exchange of 4 and 64 clients, worse verifier, s", "<= 0.25, <= 2"),
    "long_poll_seconds": ("1,000 long polls: the last is answered, s", "<= 1"),
    "scale_members_growth": ("CPU of a round, 64 to 1,000 members: growth / linear", "<= 1.3"),
    "scale_rounds_growth": ("CPU of run show, 100 to 10,000 rounds: growth / linear", "<= 1.3"),
    "bucket_cpu_ratio": ("CPU of a round: bytes through us / straight to the bucket", ">= 3"),
}


class Results:
    """The figures measured now or in an earlier run."""

    def __init__(self, path: Path | None) -> None:
        """Load earlier figures; without a path, nothing is saved."""
        self._path = path
        self.values: dict[str, Any] = {"details": {}}
        if path is not None and path.exists():
            self.values = json.loads(path.read_text())

    def add(self, part: str, details: dict[str, Any]) -> None:
        """Replace a part's raw figures."""
        self.values["details"][part] = {"measured_on": _today(), **details}
        self._keep(part, details)

    def add_round(self, against: str, size: str, entry: dict[str, Any]) -> None:
        """Replace the rounds of one size against one peer."""
        all_ = self.values["details"].setdefault("rounds", {})
        all_.setdefault(against, {})[size] = {"measured_on": _today(), **entry}
        self._keep("rounds", all_)

    def _keep(self, part: str, details: dict[str, Any]) -> None:
        self.values |= FIGURES[part](details)
        self.values["details"]["machine"] = machine()
        figures = {name: _rounded(self.values[name]) for name in ORDER if name in self.values}
        self.values = figures | {"details": self.values["details"]}
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(self.values, indent=2) + "\n")


def machine() -> dict[str, Any]:
    """The machine and software that the figures were measured with."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory_gb": round(memory_bytes / 1e9),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "packages": {name: version(name) for name in PACKAGES} | PEERS,
        "threads_of_numpy": os.environ.get("OMP_NUM_THREADS", "unset"),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return round(value, 4)


def show(console: Console, result: dict[str, Any]) -> None:
    """Print each figure, and each round's seconds."""
    table = Table(title="The coordinator")
    for column in ("", "measured", "to reach"):
        table.add_column(column, justify="left" if column == "" else "right")
    for name, (text, goal) in LINES.items():
        if name in result:
            value = result[name]
            shown = (
                ", ".join(map(_short, value.values())) if isinstance(value, dict) else _short(value)
            )
            table.add_row(text, shown, goal)
    console.print(table)
    _show_rounds(console, result["details"].get("rounds", {}))


def _show_rounds(console: Console, all_: dict[str, dict[str, dict[str, Any]]]) -> None:
    if not all_:
        return
    table = Table(title="Seconds of a round, medians, each beside ours of the same run")
    for column in ("", "against", "ours", "theirs", "ratio"):
        table.add_column(column, justify="left" if column in ("", "against") else "right")
    for name, sizes in all_.items():
        for size, entry in sizes.items():
            peer_seconds = entry["ours_seconds"] / entry["ratio"] if name == "floor" else None
            bound = ""
            if peer_seconds is None:
                peer_seconds = entry[name]["seconds"]
                bound = ">= " if entry[name]["is_lower_bound"] else ""
            row = (f"{entry['ours_seconds']:.2f}", f"{bound}{peer_seconds:.2f}")
            table.add_row(size, name, *row, f"{bound}{entry['ratio']:.2f}")
    console.print(table)
    for size, entry in all_.get("floor", {}).items():
        if "hashing_seconds" in entry:
            seconds = entry["hashing_seconds"]
            console.print(f"{size}: a round's digests, which the floor leaves out: {seconds:.2f} s")
    if any(entry["flower"]["is_lower_bound"] for entry in all_.get("flower", {}).values()):
        console.print(
            ">=: Flower had not finished a round after its warm-up when its time was up; the "
            "longer of its warm-up and its wait is counted."
        )


def _short(value: float) -> str:
    return f"{value:.3g}"
