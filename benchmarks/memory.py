"""The peak memory of one update above the loaded model and trainer, alone in its process.

grpo.py runs this once for each side, in a fresh process, so that neither side's allocator has seen
the other's work. A small update goes first, so that the optimizer's state and the libraries' own
buffers count as loaded and not as growth.

On a CPU this is the growth of the resident set's high-water mark, which Linux lets a process reset.
On a GPU it is the growth of torch's allocated memory.
"""

import argparse
import ctypes
import gc
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from sides import make_side, quiet
from workload import WARM_UP, Lengths, Workload, run_settings


def growth(device: str, work: Callable[[], object]) -> dict[str, int]:
    """Bytes in use before `work`, and how far its peak is above them."""
    gc.collect()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        at_start = torch.cuda.memory_allocated()
        work()
        return {"before": at_start, "growth": torch.cuda.max_memory_allocated() - at_start}
    # Freed memory that the allocator keeps would hide part of the growth.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    at_start = _status("VmRSS")
    work()
    return {"before": at_start, "growth": _status("VmHWM") - at_start}


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=["ours", "trl"], required=True)
    parser.add_argument("--folder", type=Path, required=True, help="The model.")
    parser.add_argument("--lengths", required=True, help="A workload's Lengths, as JSON.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--trl-rows", type=int, default=8)
    options = parser.parse_args()
    quiet(options.threads)
    lengths = Lengths(**json.loads(options.lengths))
    vocabulary = json.loads((options.folder / "config.json").read_bytes())["vocab_size"]
    with tempfile.TemporaryDirectory() as scratch:
        side = make_side(
            options.side,
            options.folder,
            run_settings(lengths),
            options.device,
            options.trl_rows,
            Path(scratch),
        )
        side.update(Workload.make(WARM_UP, vocabulary))
        workload = Workload.make(lengths, vocabulary)
        result = growth(options.device, lambda: side.update(workload))
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
