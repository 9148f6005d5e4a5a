"""Sampling with the engine that needs only torch and transformers."""

from typing import Any

import torch

from benchmarks.gpu.context import Context, peak_bytes, reset_peak
from benchmarks.timing import Clock
from benchmarks.workload import Workload
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.transformers_engine import SamplingParameters, TransformersEngine

MEMORY = 80e9  # bytes that an evaluator may use


def rollout(context: Context, model: str, full: bool = False, **engine: bool) -> dict[str, Any]:
    """A step's responses, 8 to each of 8 prompts; if `full`, all run to the limit.

    `engine` sets attributes of the engine: merge, static, fused, graphs.
    """
    policy = context.policy(model, None if full else context.scale.mean)
    return _sampled(context, policy, context.workload(policy).prompts, 8, **engine)


def evaluator(context: Context, model: str) -> dict[str, Any]:
    """Part of a test set: many prompts with one response each, in 80 GB of memory."""
    policy = context.policy(model, context.scale.evaluated_mean)
    prompts: list[list[int]] = []
    while len(prompts) < context.scale.evaluated:
        lengths = context.scale.lengths
        prompts += Workload.make(lengths, policy.card.vocabulary, seed=len(prompts)).prompts
    # Occupy the surplus memory of a larger GPU, so that the engine finds 80 GB.
    ballast = _ballast(context.device, MEMORY)
    figures = _sampled(context, policy, prompts, 1, repeats=0)
    if figures["peak_bytes"] is not None:
        figures["peak_bytes"] -= ballast.numel()
    return figures | {"ballast_bytes": ballast.numel()}


def _ballast(device: torch.device, rest: float) -> torch.Tensor:
    """Occupy all of a GPU's memory except `rest` bytes; nothing on a CPU."""
    total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    return torch.empty(max(0, int(total - rest)), dtype=torch.uint8, device=device)


def _sampled(
    context: Context,
    policy: Policy,
    prompts: list[list[int]],
    count: int,
    repeats: int = 1,
    **ways: bool,
) -> dict[str, Any]:
    """Speed and memory; responses are cut shorter if a probe shows that time would run out."""
    engine, clock = TransformersEngine(policy), Clock(context.device)
    for name, value in ways.items():
        setattr(engine, name, value)
    temperature = context.settings.grpo.temperature
    probe = min(64, context.scale.cut)
    for _ in range(2):  # the first compiles
        started = clock()
        engine.generate(prompts, SamplingParameters(count, probe, temperature, 1))
        token_seconds = (clock() - started) / probe
    cut = min(context.scale.cut, max(probe, int(0.7 * context.seconds_left / token_seconds)))
    lengths: list[int] = []

    def work() -> None:
        groups = engine.generate(prompts, SamplingParameters(count, cut, temperature, 2))
        lengths[:] = [len(response.tokens) for group in groups for response in group]

    reset_peak(context.device)
    times = context.timed(work, repeats)
    engine.close()
    return {
        **times,
        "tokens_per_second": sum(lengths) / times["seconds"],
        "rows": len(lengths),
        "rows_at_a_time": engine.max_rows,
        "ways": {name: getattr(engine, name) for name in ("merge", "static", "fused", "graphs")},
        "response_mean": sum(lengths) / len(lengths),
        "response_max": max(lengths),
        "cut": cut,
        "probe_seconds_per_token": token_seconds,
        "peak_bytes": peak_bytes(context.device),
    }
