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

# The makers' FLOP/s of dense bfloat16 products, by a part of the GPU's name.
_PEAKS = {
    "B200": 2250e12,
    "H200": 989e12,
    "GH200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX 4090": 165e12,
    "L4": 121e12,
}


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
        **_speed(policy, workload, times["seconds"], grpo.gradient_epochs, context.tiny),
        "peak_bytes": max(metrics.memory_bytes for metrics in done),
        "estimated_bytes": policy.card.parameters * policy.dtype.itemsize
        + factor_bytes(policy.card.layout.parameters)
        + estimate,
        "tokens_at_a_time": default,
        "tokens_at_a_time_after": budget.tokens,
        "loss": done[-1].loss,
        "workload": workload.describe(),
    }


def _speed(
    policy: Policy, workload: Workload, seconds: float, epochs: int, tiny: bool
) -> dict[str, Any]:
    config = json.loads(policy.model.config.to_json_string(use_diff=False))
    shape = ModelShape.from_config(config, policy.settings.lora.rank)
    flops = update_flops(shape, workload.lengths, epochs, reference=True)
    responses = sum(sum(group) for _, group in workload.lengths)
    top = peak_flops(policy.device)
    return {
        "flops": flops,
        "mfu": flops / seconds / top if top else None,
        "flops_vs_matmul": flops / seconds / matmul_rate(policy.device, 64 if tiny else None),
        "response_tokens_per_second": responses / seconds,
        "real_tokens_per_second": workload.tokens / seconds,
    }


def peak_flops(device: torch.device) -> float | None:
    """The maker's bfloat16 FLOP/s of this GPU; None for a CPU or a GPU that is not listed."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((flops for part, flops in _PEAKS.items() if part in name), None)
