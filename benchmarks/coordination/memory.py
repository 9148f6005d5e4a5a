"""Peak anonymous memory of our server, read from /proc while real clients run a round.

Anonymous memory is what the process itself has allocated. The resident set also counts pages of
memory-mapped files, which are the system's cache and are freed when others need memory.
"""

import contextlib
import threading
import time
from pathlib import Path
from shutil import rmtree
from typing import Any, Self

import psutil

from coordination.payload import TOLERANCE, Payload
from coordination.rounds import our_fleet
from coordination.serving import serving
from coordination.telling import Tell

SIZES = ((4, 140), (64, 35))
QUICK_SIZES = ((2, 1),)
INTERVAL_SECONDS = 0.02
LIMIT_MB = 150


class Watch:
    """Samples the anonymous memory of a process and its children until the block ends."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.at_start = self.peak = anonymous_bytes(pid)
        self.children_peak = self.samples = 0
        self.widest_gap = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._over.wait(INTERVAL_SECONDS):
            self.peak = max(self.peak, anonymous_bytes(self._process.pid))
            children = (anonymous_bytes(child.pid) for child in self._process.children())
            self.children_peak = max(self.children_peak, sum(children))
            self.samples += 1
            now = time.monotonic()
            self.widest_gap, last = max(self.widest_gap, now - last), now

    def entry(self) -> dict[str, Any]:
        """The measurements, in 10^6 bytes."""
        return {
            "peak_mb": self.peak / 1e6,
            "before_mb": self.at_start / 1e6,
            "children_peak_mb": self.children_peak / 1e6,
            "samples": self.samples,
            "widest_gap_seconds": self.widest_gap,
        }


def anonymous_bytes(pid: int) -> int:
    """RssAnon of a process; 0 if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def measure(quick: bool, scratch: Path, tell: Tell) -> dict[str, Any]:
    """Two rounds of each size on a fresh server."""
    entries = {}
    for clients, megabytes in QUICK_SIZES if quick else SIZES:
        folder = scratch / f"memory-{clients}x{megabytes}"
        payload = Payload(megabytes, clients, folder / "payload").write()
        with (
            serving(folder / "ours") as coordinator,
            our_fleet(coordinator, payload, 2) as fleet,
            Watch(coordinator.pid) as watch,
        ):
            for round_ in (1, 2):
                tell(f"{payload.name}: memory, round {round_} of 2")
                fleet.race(round_)
                checked = fleet.check()
                assert checked < TOLERANCE, f"{checked} from numpy's mean"
        rmtree(folder)
        entries[payload.name] = watch.entry()
    return entries


def figures(entries: dict[str, Any]) -> dict[str, float]:
    """The larger peak of the two sizes."""
    return {"server_peak_mb": max(entry["peak_mb"] for entry in entries.values())}
