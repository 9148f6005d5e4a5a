"""The cost of `aggregation.rule = "svd"` for a 7B model's shapes (Qwen2.5-7B: 28 layers).

    python benchmarks/coordination/truncation.py --members 64 --rank 32

Each distinct shape of a layer is decomposed once, on random numbers, and scaled to the whole model.
"""

import argparse
import resource
import sys
import time
from itertools import repeat

import numpy as np

from pubswap_server.aggregation.truncation import COLUMNS, decomposed, summed

LAYERS = 28
SHAPES = {(3584, 3584): 2, (512, 3584): 2, (18944, 3584): 2, (3584, 18944): 1}  # count per layer


def main() -> None:
    """Print the seconds of each shape and of the model, and the peak memory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--members", type=int, default=64)
    parser.add_argument("--rank", type=int, default=32, help="of each member")
    options = parser.parse_args()
    depth = 32 + options.members * options.rank
    rng, total = np.random.default_rng(0), 0.0
    for (outputs, inputs), count in SHAPES.items():
        whole = depth > min(outputs, inputs)
        columns = COLUMNS if whole else depth
        pair = rng.normal(size=(outputs, columns)), rng.normal(size=(columns, inputs))
        started = time.perf_counter()
        if whole:
            summed((outputs, inputs), repeat(pair, -(-depth // COLUMNS)))
        else:
            decomposed(*pair)
        seconds = time.perf_counter() - started
        total += count * seconds
        sys.stdout.write(f"{outputs} x {inputs}, S = {depth}: {seconds:.2f} s\n")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sys.stdout.write(
        f"{LAYERS} layers: {LAYERS * total / 60:.1f} min; at most {peak / 2**20:.0f} MiB\n"
    )


if __name__ == "__main__":
    main()
