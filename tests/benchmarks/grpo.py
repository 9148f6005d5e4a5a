"""PubSwap's GRPO step side by side with TRL's GRPOTrainer: same model, tokens, threads, one run.

    python tests/benchmarks/grpo.py           # all figures, on a CPU
    python tests/benchmarks/grpo.py --quick   # a small workload, in minutes
    python tests/benchmarks/grpo.py --only ragged --no-rollout   # one figure
    python tests/benchmarks/grpo.py --gpu     # Qwen3-1.7B's shape in bfloat16

Both sides' updates do the same work, which is asserted before anything is timed: old and
reference log-probabilities, and two optimizer steps on all 64 rows. Tokens per second are of
real tokens (every row's prompt and response, without padding), so that what is shared or packed
counts as speed. A figure `..._vs_trl` is our tokens per second / TRL's; memory_vs_trl is our
bytes / TRL's.
"""

import argparse
import platform
import tempfile
import time
from pathlib import Path

import torch
from bench import Bench
from compare import keep_heap
from report import RESULTS, environment, show, write
from rich.console import Console
from sides import quiet
from timing import Clock
from workload import (
    GPU_RAGGED,
    GPU_UNIFORM,
    QUICK_RAGGED,
    QUICK_UNIFORM,
    QWEN3_1_7B,
    RAGGED,
    SMALL_MODEL,
    UNIFORM,
    save_model,
)

PARTS = ("ragged", "uniform", "memory")


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="Small workloads, 3 repeats.")
    parser.add_argument("--gpu", action="store_true", help="Qwen3-1.7B's shape, in bfloat16.")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--no-rollout", action="store_true", help="Updates alone, no whole step.")
    parser.add_argument("--repeats", type=int, help="5 unless --quick.")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--trl-rows", type=int, nargs="+", default=[8, 16], help="Micro-batches to try for TRL."
    )
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall", help="cpu: on a machine in use."
    )
    parser.add_argument("--heap", choices=["kept", "default"], default="kept")
    parser.add_argument("--out", type=Path, help="Unless --quick or --only, a file in results/.")
    chosen = parser.parse_args()
    chosen.repeats = chosen.repeats or (3 if chosen.quick else 5)
    if chosen.out is None and not chosen.quick and tuple(chosen.only) == PARTS:
        chosen.out = RESULTS / ("grpo_gpu.json" if chosen.gpu else "grpo.json")
    return chosen


def run(chosen: argparse.Namespace, scratch: Path) -> Bench:
    """Measure the chosen parts."""
    model = QWEN3_1_7B if chosen.gpu else SMALL_MODEL
    dtype = torch.bfloat16 if chosen.gpu else torch.float32
    ragged, uniform = (GPU_RAGGED, GPU_UNIFORM) if chosen.gpu else (RAGGED, UNIFORM)
    bench = Bench(
        folder=save_model(scratch / "model", model, dtype),
        scratch=scratch,
        device="cuda" if chosen.gpu else "cpu",
        threads=chosen.threads,
        repeats=chosen.repeats,
        rollout=not chosen.no_rollout,
        ragged=QUICK_RAGGED if chosen.quick else ragged,
        uniform=QUICK_UNIFORM if chosen.quick else uniform,
    )
    if "memory" in chosen.only:  # first, while a GPU is still empty
        bench.memory()
    names = [name for name in ("ragged", "uniform") if name in chosen.only]
    if names:
        ours, theirs = bench.sides(chosen.trl_rows)
        for name in names:
            bench.compare(name, ours, theirs)
    name = torch.cuda.get_device_name() if chosen.gpu else platform.machine()
    bench.result |= {"model": model, "heap": chosen.heap, "clock": chosen.clock}
    bench.result["environment"] = environment(name, chosen.threads)
    return bench


def main() -> None:
    """Measure, print the table, write the file."""
    chosen = options()
    if chosen.heap == "kept" and not chosen.gpu:
        keep_heap()
    if chosen.clock == "cpu":
        Clock.source = time.process_time
    quiet(chosen.threads)
    with tempfile.TemporaryDirectory() as scratch:
        bench = run(chosen, Path(scratch))
    show(Console(), bench.result)
    if chosen.out is not None:
        write(bench.result, chosen.out)


if __name__ == "__main__":
    main()
