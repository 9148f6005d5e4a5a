"""Tokens per second that transformers samples, and the operations that take the time.

    python benchmarks/rollout.py                  # a Qwen3 of 40M parameters on a CPU
    python benchmarks/rollout.py --gpu            # Qwen3-1.7B's shape in bfloat16
    python benchmarks/rollout.py --merge --static # a GPU's code paths on a CPU

No response ends before its limit, so that all rows run to the end.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from kept import QWEN3_1_7B
from rich.console import Console
from timing import Clock
from torch.profiler import ProfilerActivity, profile
from workload import save_model, start_adapter

from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.transformers_engine import SamplingParameters, TransformersEngine
from pubswap_protocol.model import model_card
from pubswap_protocol.settings import RunSettings

SMALL: dict[str, Any] = {
    "vocab_size": 32768,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
COUNT = 8  # responses to each prompt
NO_TOKEN = 1 << 30


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", action="store_true", help="Qwen3-1.7B's shape, in bfloat16.")
    parser.add_argument("--rows", type=int, help="By default 32, or 64 on a GPU.")
    parser.add_argument("--prompt", type=int, help="Tokens; by default 128, or 1024 on a GPU.")
    parser.add_argument("--response", type=int, help="Tokens; by default 128, or 2048 on a GPU.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--merge", action="store_true", help="As always on a GPU.")
    parser.add_argument("--static", action="store_true", help="As always on a GPU.")
    return parser.parse_args()


def engine_on(folder: Path, device: Any) -> TransformersEngine:
    """An engine on the model in `folder`, with an adapter that has an effect."""
    settings = RunSettings()
    card = model_card(folder, settings.lora, "benchmark", None)
    policy = Policy.load(folder, card, settings, device)
    policy.load_adapter(start_adapter(card.layout))
    policy.card = card.model_copy(update={"eos_token_ids": (NO_TOKEN,)})
    return TransformersEngine(policy)


def shares(engine: TransformersEngine, prompts: list[list[int]], response: int) -> dict[str, float]:
    """The share of the device's time in each operation, largest first."""
    gpu = engine.policy.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU]) as profiled:
        engine.generate(prompts, SamplingParameters(COUNT, response, 1.0, 0))
    events = profiled.key_averages()
    times = {
        event.key: event.self_device_time_total if gpu else event.self_cpu_time_total
        for event in events
    }
    total = sum(times.values())
    return {name: times[name] / total for name in sorted(times, key=lambda name: -times[name])}


def main() -> None:
    """Print the median, each repeat, and the operations."""
    chosen = options()
    shape, dtype = (QWEN3_1_7B, torch.bfloat16) if chosen.gpu else (SMALL, torch.float32)
    rows = chosen.rows or (64 if chosen.gpu else 32)
    prompt = chosen.prompt or (1024 if chosen.gpu else 128)
    response = chosen.response or (2048 if chosen.gpu else 128)
    rng = np.random.default_rng(0)
    prompts = rng.integers(2, shape["vocab_size"], (rows // COUNT, prompt)).tolist()
    with tempfile.TemporaryDirectory() as scratch:
        folder = save_model(Path(scratch) / "model", shape, dtype)
        engine = engine_on(folder, "cuda" if chosen.gpu else "cpu")
    engine.merge |= chosen.merge
    engine.static |= chosen.static
    clock = Clock(engine.policy.device)
    engine.generate(prompts, SamplingParameters(COUNT, 8, 1.0, 0))
    rates = []
    for _ in range(chosen.repeats):
        started = clock()
        engine.generate(prompts, SamplingParameters(COUNT, response, 1.0, 0))
        rates.append(rows * response / (clock() - started))
    show = Console().print
    show(f"{median(rates):,.0f} tokens/s ({', '.join(f'{rate:,.0f}' for rate in rates)})")
    by_operation = shares(engine, prompts, response)
    for name in dict.fromkeys([*list(by_operation)[:8], *by_operation.keys() & {"aten::cat"}]):
        show(f"{by_operation[name]:7.1%}  {name}")


if __name__ == "__main__":
    main()
