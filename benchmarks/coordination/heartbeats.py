"""Heartbeats of 16 clients that send all adapters of a round as fast as they can."""

import threading
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from coordination.fleet import MeasuredFleet
from coordination.serving import Seat, opened, seated, serving, start
from coordination.telling import Tell
from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import ONCE
from pubswap_protocol.messages import Progress
from pubswap_protocol.tensors.adapter import AdapterLayout
from pubswap_server.runs.uploads import ADAPTERS_A_ROUND

CLIENTS, QUICK_CLIENTS = 16, 2
MEGABYTES, QUICK_MEGABYTES = 140, 1
BEAT_SECONDS, QUICK_BEAT_SECONDS = 0.5, 0.02


class BusyClient:
    """Sends one adapter after another while a thread sends heartbeats on its own connection."""

    def __init__(self, seat: Seat, layout: AdapterLayout, seed: int, pause: float) -> None:
        self._seat, self._layout, self._pause = seat, layout, pause
        self._api = CoordinatorClient(seat.url, seat.token)
        self._beating = CoordinatorClient(seat.url, seat.token, ONCE)
        rng = np.random.default_rng(seed)
        self._numbers = rng.standard_normal(layout.parameters, dtype=np.float32)

    def prepare(self, round_: int) -> None:
        """Do nothing."""

    def go(self) -> dict[str, Any]:
        """Measure the seconds of each heartbeat, and the bytes sent meanwhile."""
        over = threading.Event()
        beats: list[float] = []
        beating = threading.Thread(target=self._beat, args=(over, beats))
        beating.start()
        sent = 0
        try:
            for _ in range(ADAPTERS_A_ROUND):
                # Another adapter each time, because a stored one would not be sent again.
                self._numbers[0] += 1
                file = self._layout.header + self._numbers.tobytes()
                self._api.put_blob(self._seat.run, file)
                sent += len(file)
        finally:
            over.set()
            beating.join()
        return {"beats": beats, "bytes": sent}

    def _beat(self, over: threading.Event, beats: list[float]) -> None:
        progress = Progress(round=1, step=1, steps=2)
        while not over.wait(self._pause):
            began = time.monotonic()
            self._beating.heartbeat(self._seat.run, progress)
            beats.append(time.monotonic() - began)

    def check(self) -> float:
        """Return 0, because there is nothing to check."""
        return 0.0

    def close(self) -> None:
        """Close both connections."""
        self._api.__exit__()
        self._beating.__exit__()


def measure(quick: bool, scratch: Path, tell: Tell) -> dict[str, Any]:
    """Measure all heartbeats of all clients."""
    clients, megabytes, pause = (
        (QUICK_CLIENTS, QUICK_MEGABYTES, QUICK_BEAT_SECONDS)
        if quick
        else (CLIENTS, MEGABYTES, BEAT_SECONDS)
    )
    with serving(scratch / "heartbeats") as coordinator:
        run = opened(coordinator, megabytes, clients=clients)
        seats = seated(coordinator, run)
        makers = [
            partial(BusyClient, seat, run.model.layout, seed, pause)
            for seed, seat in enumerate(seats)
        ]
        with MeasuredFleet(makers) as fleet:
            start(coordinator, run)
            tell(f"{clients} clients send {ADAPTERS_A_ROUND} adapters of {megabytes} MB and beat")
            went = fleet.race(1)
        blocked = coordinator.longest_block
    beats = [beat for client in went.measured for beat in client["beats"]]
    least = clients * int(went.seconds / pause / 4)
    assert len(beats) >= least, f"only {len(beats)} heartbeats were answered in time, not {least}"
    sent = sum(client["bytes"] for client in went.measured)
    return {
        "clients": clients,
        "bytes_of_an_adapter": run.model.layout.file_bytes,
        "seconds": went.seconds,
        "bytes_sent": sent,
        "megabytes_per_second": sent / 1e6 / went.seconds,
        "heartbeats": len(beats),
        "slowest": max(beats),
        "median": median(beats),
        "p99": float(np.quantile(beats, 0.99)),
        "longest_block": blocked,
    }


def figures(details: dict[str, Any]) -> dict[str, float]:
    """The slowest heartbeat."""
    return {"slowest_heartbeat_seconds": details["slowest"]}
