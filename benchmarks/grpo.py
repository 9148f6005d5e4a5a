"""PubSwap's GRPO step side by side with TRL's trainers: same model, tokens, threads, one run.

    python benchmarks/grpo.py           # all figures, on a CPU
    python benchmarks/grpo.py --quick   # a small workload, in minutes
    python benchmarks/grpo.py --only ragged --no-rollout   # one figure

Both sides' updates do the same work, which is asserted before anything is timed: old and
reference log-probabilities, and two optimizer steps on all 64 rows. Tokens per second count real
tokens (every row's prompt and response, without padding), so that sharing and packing show up as
speed. A figure `..._vs_trl` is our tokens per second / TRL's; memory_vs_trl is our bytes / TRL's.

TRL's experimental AsyncGRPOTrainer, which packs, runs without its vLLM server: only its update is
compared with ours, without a reference pass, because TRL's has none.
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
from workload import QUICK_RAGGED, QUICK_UNIFORM, RAGGED, SMALL_MODEL, UNIFORM, save_model

PARTS = ("ragged", "uniform", "packed", "memory")


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="Small workloads, 3 repeats.")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--no-rollout", action="store_true", help="Updates only, no whole steps.")
    parser.add_argument("--repeats", type=int, help="5 unless --quick.")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--trl-rows", type=int, nargs="+", default=[8, 16], help="Micro-batches to try for TRL."
    )
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall", help="cpu: for a busy machine."
    )
    parser.add_argument("--heap", choices=["kept", "default"], default="kept")
    parser.add_argument("--out", type=Path, help="results/grpo.json unless --quick or --only.")
    chosen = parser.parse_args()
    chosen.repeats = chosen.repeats or (3 if chosen.quick else 5)
    if chosen.out is None and not chosen.quick and tuple(chosen.only) == PARTS:
        chosen.out = RESULTS / "grpo.json"
    return chosen


def run(chosen: argparse.Namespace, scratch: Path) -> Bench:
    """Measure the chosen parts."""
    bench = Bench(
        folder=save_model(scratch / "model", SMALL_MODEL, torch.float32),
        scratch=scratch,
        threads=chosen.threads,
        repeats=chosen.repeats,
        rollout=not chosen.no_rollout,
        ragged=QUICK_RAGGED if chosen.quick else RAGGED,
        uniform=QUICK_UNIFORM if chosen.quick else UNIFORM,
    )
    if "memory" in chosen.only:
        bench.memory()
    names = [name for name in ("ragged", "uniform") if name in chosen.only]
    if names:
        pubswap, trl = bench.sides(chosen.trl_rows)
        for name in names:
            bench.compare(name, pubswap, trl)
    if "packed" in chosen.only:
        bench.compare_packed()
    bench.result |= {"model": SMALL_MODEL, "heap": chosen.heap, "clock": chosen.clock}
    bench.result["environment"] = environment(platform.machine(), chosen.threads)
    return bench


def main() -> None:
    """Measure, print the table, write the file."""
    chosen = options()
    if chosen.heap == "kept":
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
