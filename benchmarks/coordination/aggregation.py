"""The mean as our coordinator computes it, against numpy's in memory, in one process.

Ours reads memory-mapped files (from the page cache here), sums in float64, and produces the
canonical file's bytes. The coordinator also computes the clients' inner products for the drift in
another thread, which is not in these figures. numpy's is the mean of arrays in memory: `stacking`
is `np.stack` followed by `mean(axis=0)` in float32, as `np.mean` of a list does, and is what the
ratio compares with; `numpy` is the same without the stacking. One thread each.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from coordination.payload import TOLERANCE, Array, Payload, shapes, tensors
from coordination.telling import Tell
from pubswap_protocol.methods.rules import FedIT
from pubswap_protocol.tensors.adapter import AdapterFile, AdapterLayout
from pubswap_server.aggregation.outputs import adapter_file, combined
from pubswap_server.aggregation.updates import Updates

SIZES = ((4, 35), (16, 35), (4, 140))
QUICK_SIZES = ((2, 1),)
REPEATS = 7


def measure(quick: bool, scratch: Path, tell: Tell) -> dict[str, Any]:
    """Seconds of each way and size, in turns, after a warm-up."""
    return {
        f"{clients} x {megabytes} MB": _size(clients, megabytes, scratch, tell)
        for clients, megabytes in (QUICK_SIZES if quick else SIZES)
    }


def _size(clients: int, megabytes: float, scratch: Path, tell: Tell) -> dict[str, Any]:
    folder = scratch / f"mean-{clients}x{megabytes}"
    payload = Payload(megabytes, clients, folder).write()
    updates = [tensors(np.load(payload.update(n)), megabytes) for n in range(clients)]
    stacks = {name: np.stack([update[name] for update in updates]) for name in updates[0]}
    files = _files(payload, folder)
    ways: dict[str, Callable[[], Array]] = {
        "ours": lambda: _pubswap(files),
        "numpy": lambda: _joined([stack.mean(axis=0) for stack in stacks.values()]),
        "stacking": lambda: _joined(
            [np.stack([update[name] for update in updates]).mean(axis=0) for name in stacks]
        ),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    expected = np.load(payload.mean)
    for repeat in range(1 + REPEATS):
        tell(f"{payload.name}: mean, {repeat + 1} of {1 + REPEATS}")
        for name, make in ways.items():
            began = time.perf_counter()
            mean = make()
            seconds[name].append(time.perf_counter() - began)
            assert float(np.abs(mean - expected).max()) < TOLERANCE, f"{name}: the mean differs"
    measured = {name: times[1:] for name, times in seconds.items()}
    medians = {name: median(times) for name, times in measured.items()}
    return {
        "seconds": measured,
        "medians": medians,
        "bytes_read": 4 * payload.parameters * clients,
        "vs_numpy": medians["numpy"] / medians["ours"],
        "vs_stacking": medians["stacking"] / medians["ours"],
    }


def _files(payload: Payload, folder: Path) -> list[AdapterFile]:
    layout = AdapterLayout(tensors=shapes(payload.megabytes))
    files = []
    for client in range(payload.clients):
        path = folder / f"{client}.safetensors"
        path.write_bytes(layout.header + np.load(payload.update(client)).tobytes())
        files.append(AdapterFile(path, layout))
    return files


def _pubswap(files: list[AdapterFile]) -> Array:
    members = tuple(f"client-{number}" for number in range(len(files)))
    updates = Updates(members, tuple(files), (1.0,) * len(files), files[0])
    results = combined(updates.slices(), FedIT(), updates.shares, updates.widest)
    adapter = b"".join(adapter_file(updates.layout, results))
    return np.frombuffer(adapter, np.float32, offset=len(files[0].layout.header))


def _joined(parts: list[Array]) -> Array:
    return np.concatenate([part.reshape(-1) for part in parts])


def figures(sizes: dict[str, Any]) -> dict[str, float]:
    """The ratio of the worst size."""
    ratios = [size["vs_stacking"] for size in sizes.values() if isinstance(size, dict)]
    return {"aggregate_vs_numpy": min(ratios)}
