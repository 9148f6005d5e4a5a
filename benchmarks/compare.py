"""Compare the two sides: check that they do the same work, and time them."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import median

import numpy as np
import torch
from sides import Side
from timing import Outcome, Times
from workload import Lengths, Workload

from pubswap_protocol.tensors.adapter import Adapter

HEAP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


def keep_heap() -> None:
    """Restart this process with a heap that is never returned to the system, unless it has one.

    For each large tensor, glibc maps and unmaps fresh pages. Their cost depends on the machine (on
    some virtual machines it is most of the run) and not on the trainer, so both sides are timed on
    pages that are mapped already. Such a heap is fragmented and takes more memory than either side
    by itself, so peak memory is measured without it.
    """
    if any(os.environ.get(name) != value for name, value in HEAP.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | HEAP)


def same_work(pubswap: Outcome, trl: Outcome, start: Adapter) -> dict[str, float]:
    """How far the sides' results of an update differ; raises AssertionError if by too much.

    The factors' change is compared because it depends on every gradient of both epochs.
    """
    moved = [
        np.concatenate([(side.adapter[name] - start[name]).ravel() for name in sorted(start)])
        for side in (pubswap, trl)
    ]
    apart = {
        "loss": abs(pubswap.loss - trl.loss),
        "grad_norm": abs(pubswap.grad_norm / trl.grad_norm - 1),
        "adapter_change": float(np.linalg.norm(moved[0] - moved[1]) / np.linalg.norm(moved[1])),
    }
    limits = {"loss": 1e-4, "grad_norm": 1e-3, "adapter_change": 1e-2}
    assert all(apart[name] <= limits[name] for name in limits), apart
    return apart


def interleaved(
    repeats: int,
    works: Mapping[str, Callable[[], Times]],
    between: Callable[[], None],
    note: Callable[[str], None],
) -> dict[str, list[Times]]:
    """Run each work `repeats` times, in turn, reversing the order each time."""
    measured: dict[str, list[Times]] = {name: [] for name in works}
    for repeat in range(repeats):
        between()
        for name in list(works) if repeat % 2 == 0 else reversed(list(works)):
            times = works[name]()
            measured[name].append(times)
            note(f"{repeat + 1}/{repeats} {name}: {times.rollout:.2f} + {times.update:.2f} s")
    return measured


def best_rows(sides: Mapping[int, Side], workload: Workload) -> tuple[int, dict[int, float]]:
    """The micro-batch size with which TRL's update is shortest, and the seconds of each.

    The largest also runs once before, so that the heap has grown before anything is timed. A size
    that does not fit in memory counts as infinite.
    """
    if len(sides) == 1:
        return next(iter(sides)), {}
    seconds = dict.fromkeys(sides, math.inf)
    for rows in (max(sides), *sides):
        try:
            seconds[rows] = sides[rows].update(workload).times.update
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if "memory" not in str(error):
                raise
    return min(seconds, key=lambda rows: seconds[rows]), seconds


def peak(side: str, folder: Path, lengths: Lengths, device: str, threads: int) -> dict[str, int]:
    """memory.py's measurement of one side, in a fresh process with the allocator's defaults."""
    environment = {name: value for name, value in os.environ.items() if name not in HEAP}
    command = [
        *(sys.executable, str(Path(__file__).with_name("memory.py"))),
        *("--side", side, "--folder", str(folder), "--lengths", json.dumps(asdict(lengths))),
        *("--device", device, "--threads", str(threads)),
    ]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    measured: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return measured


def medians(times: list[Times]) -> dict[str, float]:
    """The median of each phase, in seconds."""
    return {
        "rollout": median(run.rollout for run in times),
        "update": median(run.update for run in times),
        "step": median(run.step for run in times),
    }
