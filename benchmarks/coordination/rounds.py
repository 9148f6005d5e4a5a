"""Rounds: ours and the floor's in turns, then NVFlare's and Flower's, all with the same data."""

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from statistics import median
from typing import Any

from peers import flower, nvflare

from coordination.fleet import MeasuredFleet, Went
from coordination.limits.floor_client import FloorClient
from coordination.ours import OurClient
from coordination.payload import TOLERANCE, Payload
from coordination.programs import listens, running
from coordination.serving import MeasuredCoordinator, opened, seated, serving, start
from coordination.telling import Tell
from pubswap_client.demo.processes import free_port
from pubswap_protocol.digests import digest_of


@dataclass(frozen=True, slots=True)
class Size:
    """One configuration: clients, adapter size, repeats, and how long a peer may take."""

    clients: int
    megabytes: float
    repeats: int
    flower_cap_seconds: float


SIZES = (Size(4, 35, 7, 400), Size(16, 35, 5, 200), Size(4, 140, 5, 250))
QUICK_SIZES = (Size(2, 1, 2, 150),)
NVFLARE_CAP_SECONDS = 360.0


@contextmanager
def our_fleet(
    coordinator: MeasuredCoordinator, payload: Payload, rounds: int, buckets: tuple[str, ...] = ()
) -> Iterator[MeasuredFleet]:
    """Our clients in a run that has begun and does not end within `rounds` rounds."""
    run = opened(coordinator, payload.megabytes, clients=payload.clients, rounds=rounds + 1)
    layout = run.model.layout
    assert layout.parameters == payload.parameters
    seats = seated(coordinator, run)
    makers = [partial(OurClient, seat, layout, payload, n, buckets) for n, seat in enumerate(seats)]
    with MeasuredFleet(makers) as fleet:
        start(coordinator, run)
        yield fleet


@contextmanager
def floor_fleet(payload: Payload, folder: Path) -> Iterator[MeasuredFleet]:
    """The floor's server with its clients."""
    folder.mkdir()
    port = free_port()
    command = [sys.executable, "-m", "coordination.limits.floor", "--port", str(port)]
    command += ["--folder", str(folder), "--clients", str(payload.clients)]
    command += ["--parameters", str(payload.parameters)]
    makers = [partial(FloorClient, port, payload, n) for n in range(payload.clients)]
    with (
        running(command, folder.with_suffix(".log"), lambda: listens(port)),
        MeasuredFleet(makers) as fleet,
    ):
        yield fleet


def measure(
    sizes: tuple[Size, ...], against: set[str], scratch: Path, tell: Tell
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """For each size and each of `against`, yield its name, the size's, and both sides' figures."""
    for size in sizes:
        folder = scratch / f"{size.clients}x{size.megabytes:g}"
        payload = Payload(size.megabytes, size.clients, folder / "payload").write()
        pubswap, floor = _pubswap_and_floor(size, payload, "floor" in against, folder, tell)
        side = {"ours_seconds": median(pubswap["seconds"]), "ours": pubswap}
        if floor:
            floor_seconds = median(floor["seconds"])
            ratio = side["ours_seconds"] / floor_seconds
            hashing = hashing_seconds(payload)
            entry = {**side, "floor": floor, "ratio": ratio, "hashing_seconds": hashing}
            yield "floor", payload.name, entry
        for name, peer, cap in (
            ("nvflare", nvflare, NVFLARE_CAP_SECONDS),
            ("flower", flower, size.flower_cap_seconds),
        ):
            if name not in against:
                continue
            tell(f"{payload.name}: {name}, at most {cap:.0f} s")
            outcome = peer.measure(payload, 2 if name == "nvflare" else 1, cap, folder / name)
            ratio = outcome.seconds / side["ours_seconds"] if outcome.seconds else None
            entry = {**side, name: outcome.entry() | {"cap_seconds": cap}, "ratio": ratio}
            yield name, payload.name, entry
        rmtree(folder)


def hashing_seconds(payload: Payload) -> float:
    """Seconds that this machine needs, with all cores, for a round's digests.

    There are three for each client: before sending, on arrival, and of what it fetches. The floor
    computes none.
    """
    data = payload.update(0).read_bytes()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        began = time.monotonic()
        list(pool.map(digest_of, [data] * (3 * payload.clients)))
        return time.monotonic() - began


def _pubswap_and_floor(
    size: Size, payload: Payload, with_floor: bool, folder: Path, tell: Tell
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    with ExitStack() as stack:
        coordinator = stack.enter_context(serving(folder / "ours"))
        fleets = {"ours": stack.enter_context(our_fleet(coordinator, payload, 1 + size.repeats))}
        if with_floor:
            fleets["floor"] = stack.enter_context(floor_fleet(payload, folder / "floor"))
        went: dict[str, list[Went]] = {name: [] for name in fleets}
        checked = dict.fromkeys(fleets, 0.0)
        for round_ in range(1, 2 + size.repeats):
            for name, fleet in fleets.items():
                tell(f"{payload.name}: {name}, round {round_} of {1 + size.repeats}")
                os.sync()  # so that neither waits for what the other has left to write
                result = fleet.race(round_)
                checked[name] = max(checked[name], fleet.check())
                assert checked[name] < TOLERANCE, f"{name}: {checked[name]} from numpy's mean"
                went[name].append(result)
    entries = {name: _entry(all_, checked[name], payload) for name, all_ in went.items()}
    return entries["ours"], entries.get("floor")


def _entry(went: list[Went], checked: float, payload: Payload) -> dict[str, Any]:
    """The figures of all rounds except the first, which warms up."""
    measured = went[1:]
    names = [name for name in measured[0].measured[0] if name != "bytes"]
    slowest = {
        name: median([max(one[name] for one in round_.measured) for round_ in measured])
        for name in names
    }
    return {
        "seconds": [round_.seconds for round_ in measured],
        "warm_up": went[0].seconds,
        "slowest_client": slowest,
        "checked": checked,
        "bytes_each_way": 4 * payload.parameters,
    }


def figures(rounds: dict[str, dict[str, dict[str, Any]]]) -> dict[str, float]:
    """The worst ratio over the sizes; above 1, a peer is slower than we, but the floor faster."""
    ratios_by_peer = {}
    for name, worst in (("flower", min), ("nvflare", min), ("floor", max)):
        ratios = [entry["ratio"] for entry in rounds.get(name, {}).values() if entry["ratio"]]
        if ratios:
            ratios_by_peer[f"round_vs_{name}"] = worst(ratios)
    return ratios_by_peer
