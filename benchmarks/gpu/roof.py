"""The tokens per second of a rollout that a GPU's memory allows at most.

    python -m benchmarks.gpu.roof                   # Qwen3-1.7B on the GPUs that are listed
    python -m benchmarks.gpu.roof --model Qwen3-4B --response 1447

A decoding step reads all weights once, and of each row that is not finished its keys and values:

    bytes = 2 * (W + rows * (prompt + response / 2) * layers * 2 * key heads * head dim)

in bfloat16, for a step in the middle. Seconds are these bytes over the memory's bandwidth by the
GPU's maker. Nothing else is counted: no matrix product, no sampling, no write. An engine that reads
a prompt's keys once for all its responses could do better.
"""

import argparse
import sys
from collections.abc import Sequence

from benchmarks.flops import ModelShape
from benchmarks.gpu.cards import CARDS
from benchmarks.gpu.plan import FIRST
from benchmarks.gpu.shapes import SHAPES

BYTES = 2  # bfloat16
PROMPT = 640  # tokens on average: the workload's prompts have 256 to 1,024
RANK = 32


def step_bytes(shape: ModelShape, rows: int, context: float) -> float:
    """The bytes that a step of `rows` rows reads, with `context` tokens in each on average."""
    key_values = shape.layers * 2 * shape.key_value_heads * shape.head_dim
    return BYTES * (shape.linear + shape.head + shape.lora + rows * context * key_values)


def tokens_per_second(
    shape: ModelShape, bandwidth: float, response: float, prompt: float = PROMPT, rows: int = 64
) -> float:
    """The roof for rows that all have these lengths in tokens, which suits an engine best."""
    return rows * bandwidth / step_bytes(shape, rows, prompt + response / 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the roof for each listed GPU."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=sorted(SHAPES), default=FIRST)
    parser.add_argument("--prompt", type=int, default=PROMPT, help="Tokens of a prompt.")
    parser.add_argument("--response", type=int, default=1200, help="Tokens of a response.")
    parser.add_argument("--rows", type=int, default=64, help="Responses at once.")
    parser.add_argument("--rank", type=int, default=RANK, help="LoRA's rank.")
    chosen = parser.parse_args(arguments)
    shape = ModelShape.from_config(SHAPES[chosen.model], chosen.rank)
    for card in CARDS:
        roof = tokens_per_second(shape, card.bandwidth, chosen.response, chosen.prompt, chosen.rows)
        sys.stdout.write(
            f"{card.name:<10} {card.bandwidth / 1e12:4.2f} TB/s {roof:>8,.0f} tokens/s\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
