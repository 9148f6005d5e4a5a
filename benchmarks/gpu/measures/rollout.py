"""Sampling: its speed, and vLLM's log-probabilities."""

from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.gpu.context import Context, peak_bytes, reset_peak
from benchmarks.gpu.engines import sampling
from benchmarks.gpu.mismatch import apart
from benchmarks.timing import Clock
from benchmarks.workload import Workload, start_adapter
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.transformers_engine import SamplingParameters, TransformersEngine
from pubswap_protocol.tensors.responses import Response

MEMORY = 80e9  # bytes that an evaluator may use


def rollout(context: Context, model: str, full: bool = False, **ways: bool) -> dict[str, Any]:
    """A step's responses, 8 to each of 8 prompts, by transformers; if `full`, all to the limit.

    `ways` sets attributes of the engine: merge, static, fused, graphs.
    """
    policy = context.policy(model, None if full else context.scale.mean)
    return _sampled(context, policy, context.workload(policy).prompts, 8, **ways)


def vllm_rollout(
    context: Context, model: str, full: bool = False, engine: str = "vllm", **vllm: Any
) -> dict[str, Any]:
    """The same responses by vLLM, and their log-probabilities against the trainer's.

    `vllm` are fields of VllmSettings. Every timed call samples from a new adapter, as a step does,
    so the seconds include loading it, and waking and sleeping.
    """
    policy = context.policy(model, None if full else context.scale.mean)
    prompts = context.workload(policy).prompts
    temperature, cut = context.settings.grpo.temperature, context.scale.cut
    clock, groups, version = Clock(context.device), list[list[Response]](), 0
    started = clock()
    with sampling(context, policy, context.folder(model), engine, **vllm) as made:
        ready = clock() - started

        def work() -> None:
            nonlocal version
            version += 1
            policy.load_adapter(start_adapter(policy.card.layout, version))
            groups[:] = made.generate(prompts, SamplingParameters(8, cut, temperature, version))

        times = context.timed(work)
        graphs = _graphs(made)
    mismatch = apart(policy, prompts, groups, temperature)
    return {
        **times,
        **_lengths(groups, times["seconds"]),
        "ready_seconds": ready,
        "graphs": graphs,
        "mismatch": {"mean": float(mismatch.mean()), "max": float(mismatch.max())},
    }


def _graphs(engine: Any) -> str | None:
    """vLLM's CUDA graphs as its configuration names them; None for a server."""
    llm = getattr(engine, "_llm", None)
    if llm is None:
        return None
    return str(llm.llm_engine.vllm_config.compilation_config.cudagraph_mode)


def _lengths(groups: Sequence[list[Response]], seconds: float) -> dict[str, Any]:
    rows = [len(response.tokens) for group in groups for response in group]
    return {
        "tokens_per_second": sum(rows) / seconds,
        "rows": len(rows),
        "response_mean": sum(rows) / len(rows),
        "response_max": max(rows),
    }


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
    groups: list[list[Response]] = []

    def work() -> None:
        groups[:] = engine.generate(prompts, SamplingParameters(count, cut, temperature, 2))

    reset_peak(context.device)
    times = context.timed(work, repeats)
    engine.close()
    return {
        **times,
        **_lengths(groups, times["seconds"]),
        "rows_at_a_time": engine.max_rows,
        "ways": {name: getattr(engine, name) for name in ("merge", "static", "fused", "graphs")},
        "cut": cut,
        "probe_seconds_per_token": token_seconds,
        "peak_bytes": peak_bytes(context.device),
    }
