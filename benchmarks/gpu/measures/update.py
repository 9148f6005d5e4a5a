"""The update phase on frozen responses: speed, model FLOPs utilisation, memory."""

import json
from typing import Any

import torch

from benchmarks.flops import ModelShape, update_flops
from benchmarks.gpu.attention import attend_by
from benchmarks.gpu.context import Context, reset_peak
from benchmarks.timing import matmul_rate
from benchmarks.workload import AsTrl, Workload, frozen_groups
from pubswap_client.policy.groups import collate
from pubswap_client.policy.memory import Shape
from pubswap_client.policy.policy import Policy
from pubswap_client.training.memory import (
    TokenBudget,
    default_budget,
    factor_bytes,
    update_bytes,
)
from pubswap_client.training.metrics import StepMetrics
from pubswap_client.training.update import UpdateContext
from pubswap_client.training.update import update as run_update


def update(
    context: Context,
    model: str,
    attention: str | None = None,
    checkpointing: bool = False,
) -> dict[str, Any]:
    """One update of two epochs, with the reference pass."""
    policy = context.policy(model)
    workload = context.workload(policy)
    settings, shape = context.settings, Shape.of(policy.model.config, policy.dtype)
    grpo = settings.grpo
    batch = collate(frozen_groups(workload), AsTrl())
    start = [factor.detach().clone() for factor in policy.trainable()]
    fused = True if context.device.type == "cuda" else None  # like the trainer
    optimizer = torch.optim.AdamW(policy.trainable(), lr=grpo.learning_rate, fused=fused)
    default = default_budget(policy, checkpointing)
    budget = TokenBudget(default)
    done: list[StepMetrics] = []

    def work() -> None:
        context = UpdateContext(policy, budget, checkpointing)
        done.append(run_update(context, optimizer, batch, start))

    reset_peak(context.device)  # forget the peak of earlier measurements
    with attend_by(policy, attention) as path:
        times = context.timed(work)
    tokens = min(default, sum(prompt + sum(group) for prompt, group in workload.lengths))
    estimate = update_bytes(shape, tokens, checkpointing, context.device.type == "cuda")
    return {
        **times,
        "attention": path,
        **_speed(context, policy, workload, times["seconds"]),
        "peak_bytes": max(metrics.memory_bytes for metrics in done),
        "estimated_bytes": policy.card.parameters * policy.dtype.itemsize
        + factor_bytes(policy.card.layout.parameters)
        + estimate,
        "tokens_at_a_time": default,
        "tokens_at_a_time_after": budget.tokens,
        "loss": done[-1].loss,
        "workload": workload.describe(),
    }


def _speed(context: Context, policy: Policy, workload: Workload, seconds: float) -> dict[str, Any]:
    config = json.loads(policy.model.config.to_json_string(use_diff=False))
    shape = ModelShape.from_config(config, policy.settings.lora.rank)
    epochs = context.settings.grpo.gradient_epochs
    flops = update_flops(shape, workload.lengths, epochs, reference=True)
    responses = sum(sum(group) for _, group in workload.lengths)
    card, size = context.card, 64 if context.tiny else None
    return {
        "flops": flops,
        "mfu": flops / seconds / card.flops if card else None,
        "flops_vs_matmul": flops / seconds / matmul_rate(policy.device, size),
        "response_tokens_per_second": responses / seconds,
        "real_tokens_per_second": workload.tokens / seconds,
    }
