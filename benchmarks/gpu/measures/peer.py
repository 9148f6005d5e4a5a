"""TRL's trainers on the same frozen responses, if TRL is installed."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.context import Context, NotRun

BENCHMARKS = Path(__file__).parents[2]


def peer(context: Context, model: str, trainer: str, liger: bool = False) -> dict[str, Any]:
    """An update by TRL's GRPOTrainer or AsyncGRPOTrainer, with the largest micro-batch that fits.

    Like ours, it runs without gradient checkpointing. On a GPU, TRL uses its faster output layer by
    itself. With `liger`, GRPOTrainer has liger-kernel's layers, as ours has.
    """
    for name in ("trl", "datasets", *(["liger_kernel"] if liger else [])):
        if importlib.util.find_spec(name) is None:
            raise NotRun(f"{name} is not installed")
    sys.path.insert(0, str(BENCHMARKS))  # the sides import each other as scripts do
    from trl_async_side import TrlAsyncSide, without_reference
    from trl_side import TrlSide
    from workload import Workload, run_settings

    context.free()
    folder, device = context.folder(model), context.device.type
    workload = Workload.make(context.scale.lengths, context.policy(model).card.vocabulary)
    context.free()
    settings = run_settings(context.scale.lengths)
    for rows in (8, 4, 2, 1):
        try:
            if trainer == "AsyncGRPOTrainer":
                alike, tokens = without_reference(settings), rows * sum(_longest(workload))
                side: Any = TrlAsyncSide(folder, alike, device, context.scratch, tokens)
            else:
                side = TrlSide(folder, settings, device, rows, context.scratch, liger=liger)
            times = context.timed(lambda side=side: side.update(workload), repeats=2)
        except torch.OutOfMemoryError:
            side = None
            context.free()
            continue
        responses = sum(sum(group) for _, group in workload.lengths)
        return {
            **times,
            "rows": rows,
            "response_tokens_per_second": responses / times["seconds"],
            "real_tokens_per_second": workload.tokens / times["seconds"],
        }
    raise NotRun("not even one row fits this GPU's memory")


def _longest(workload: Any) -> tuple[int, int]:
    """The longest prompt and the longest response, in tokens."""
    prompts, groups = zip(*workload.lengths, strict=True)
    return max(prompts), max(max(group) for group in groups)
