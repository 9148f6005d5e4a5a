"""NVFlare's rounds: its PyTorch FedAvg recipe in POC mode, with a process for each site."""

import itertools
import time
from pathlib import Path
from typing import Any

from coordination.payload import TOLERANCE, Payload

from peers.outcome import PeerOutcome, entries
from peers.processes import BENCHMARKS, Tree, programs

JOB = BENCHMARKS / "peers" / "nvflare_job" / "job.py"


def measure(payload: Payload, rounds: int, cap_seconds: float, scratch: Path) -> PeerOutcome:
    """Run a warm-up and up to `rounds` rounds, stopped after `cap_seconds`, including startup.

    A round lasts from when the last site has a model until the last site has the next one.
    """
    log, temporary = scratch / "rounds", scratch / "tmp"
    for folder in (log, temporary):
        folder.mkdir(parents=True)
    receives = 2 + rounds
    # Large messages are spooled through TMPDIR, whose default may be in memory.
    env = {
        "NVFLARE_POC_WORKSPACE": str(scratch / "poc"),
        "TMPDIR": str(temporary),
    }
    options = {
        "folder": payload.folder,
        "log": log,
        "megabytes": payload.megabytes,
        "clients": payload.clients,
        "rounds": receives,
    }
    command = ["python", str(JOB)]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    with Tree(scratch / "logs", programs("nvflare"), env) as tree:
        job = tree.start("job", command)
        deadline = time.monotonic() + cap_seconds
        while time.monotonic() < deadline and job.poll() is None:
            time.sleep(0.5)
            if len(_held(log, payload.clients)) == receives and _checked(log, payload.clients):
                break
        stopped = time.monotonic()
        held = _held(log, payload.clients)
        if not held:
            raise RuntimeError(f"NVFlare's sites received no model:\n{tree.tail('job', 40)}")
    return _outcome(log, held, stopped, payload)


def _sites(log: Path, clients: int) -> list[list[dict[str, Any]]]:
    return [entries(log / f"client-{index}.jsonl") for index in range(clients)]


def _held(log: Path, clients: int) -> list[float]:
    """When the last site got each round's model, for the rounds that all sites have."""
    times = [[entry["at"] for entry in site] for site in _sites(log, clients)]
    return [max(at) for at in zip(*times, strict=False)]


def _checked(log: Path, clients: int) -> list[float]:
    """The difference from numpy's mean, of each site that has checked its last model."""
    return [entry["error"] for site in _sites(log, clients) for entry in site if "error" in entry]


def _outcome(log: Path, held: list[float], stopped: float, payload: Payload) -> PeerOutcome:
    for site in _sites(log, payload.clients):
        for entry in site:
            assert entry["received"] == entry["sent"] == 4 * payload.parameters, entry
    errors = _checked(log, payload.clients)
    assert max(errors, default=0.0) < TOLERANCE, f"NVFlare's mean is {max(errors)} from numpy's"
    took = [end - start for start, end in itertools.pairwise(held)]
    return PeerOutcome(
        warm_up=took[0] if took else None,
        rounds=took[1:],
        unfinished=None if errors else stopped - held[-1],
        checked=max(errors, default=None),
        bytes_each_way=4 * payload.parameters,
    )
