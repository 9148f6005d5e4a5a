"""What training needs of a device's memory, before the model is loaded: the doctor's estimate."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig

from pubswap_client.settings import ClientSettings
from pubswap_client.training.budget import SMALLEST
from pubswap_client.training.memory import (
    CPU_TOKENS,
    Shape,
    factor_bytes,
    free_bytes,
    gpu_budget,
    rollout_bytes,
    update_bytes,
)
from pubswap_client.training.policy import find_device
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import RunSettings


@dataclass(frozen=True, slots=True)
class Place:
    """The device of one process: `free` and `total` are bytes."""

    name: str
    cuda: bool
    free: int
    total: int
    count: int  # GPUs of this machine; 1 for its CPU

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes for one process; sampling and updating follow each other, so that the larger counts."""

    weights: int
    factors: int
    engine: int  # what a vLLM that does not sleep keeps
    update: int
    rollout: int
    tokens: int  # in a micro-batch of the update

    @property
    def fixed(self) -> int:
        """What is there all the time."""
        return self.weights + self.factors + self.engine

    @property
    def peak(self) -> int:
        """The most at any time."""
        return self.fixed + max(self.update, self.rollout)


def find_place(settings: ClientSettings) -> Place:
    """The device that training would take; raises InvalidSettings if a GPU is asked for in vain."""
    device = find_device(settings.device)
    if device.type != "cuda":
        free = free_bytes(device)
        return Place("the CPU", False, free, free, 1)
    count = torch.cuda.device_count()
    free, total = min(torch.cuda.mem_get_info(n) for n in range(min(count, settings.processes)))
    return Place(torch.cuda.get_device_name(0), True, free, total, count)


def needs(
    settings: ClientSettings, run: RunSettings, card: ModelCard, folder: Path, place: Place
) -> Needs:
    """The estimate for the longest prompts and responses that the run allows."""
    dtype = torch.bfloat16 if place.cuda else torch.float32
    shape = Shape.of(AutoConfig.from_pretrained(folder), dtype)
    weights = card.parameters * dtype.itemsize
    if settings.shard:
        # One layer is whole at a time, and the next one is on its way.
        weights = weights // settings.processes + 2 * weights // shape.layers
    factors = factor_bytes(card.layout.parameters)
    sampling, kept = _sampling(settings, run, shape, place, weights)
    engine = sampling if kept else 0
    tokens = _micro_batch(settings, run, shape, place, place.free - weights - factors - engine)
    return Needs(
        weights=weights,
        factors=factors,
        engine=engine,
        update=update_bytes(shape, tokens, settings.gradient_checkpointing, place.cuda),
        rollout=0 if kept else sampling,
        tokens=tokens,
    )


def fitting_update(
    settings: ClientSettings, estimate: Callable[[ClientSettings], Needs], free: int
) -> list[str]:
    """Settings, each as `key = value`, with which the update is estimated to fit; may be none."""
    found = []
    change: dict[str, bool | int] = {"gradient_checkpointing": True}
    if not settings.gradient_checkpointing and _fits(estimate(_with(settings, change)), free):
        found.append("gradient_checkpointing = true")
    tokens = estimate(settings).tokens // 2
    while tokens >= SMALLEST:
        smaller = estimate(_with(settings, {"micro_batch_tokens": tokens}))
        if smaller.tokens > tokens:
            break  # a pack holds at least one row
        if _fits(smaller, free):
            found.append(f"micro_batch_tokens = {tokens}")
            break
        tokens //= 2
    return found


def fitting_rows(
    settings: ClientSettings, estimate: Callable[[ClientSettings], Needs], free: int, group: int
) -> int | None:
    """A `rollout_rows` of at least one prompt's `group` with which sampling fits, if there is."""
    rows = settings.rollout_rows
    while rows > group:
        rows = max(group, rows // 2)
        found = estimate(_with(settings, {"rollout_rows": rows}))
        if found.fixed + found.rollout <= free:
            return rows
    return None


def _with(settings: ClientSettings, change: Mapping[str, bool | int]) -> ClientSettings:
    return settings.model_copy(update=dict(change))


def _fits(found: Needs, free: int) -> bool:
    return found.fixed + found.update <= free


def _micro_batch(
    settings: ClientSettings, run: RunSettings, shape: Shape, place: Place, free: int
) -> int:
    """Tokens of the largest pack: at least one row, at most the whole step."""
    grpo = run.grpo
    budget = settings.micro_batch_tokens or (
        gpu_budget(shape, max(0, free), settings.gradient_checkpointing)
        if place.cuda
        else CPU_TOKENS
    )
    row = grpo.max_prompt_tokens + grpo.max_response_tokens
    group = grpo.max_prompt_tokens + grpo.responses_per_prompt * grpo.max_response_tokens
    return max(row, min(budget, grpo.prompts_per_step * group))


def _sampling(
    settings: ClientSettings, run: RunSettings, shape: Shape, place: Place, weights: int
) -> tuple[int, bool]:
    """Bytes that the engine takes of this device to sample, and whether it keeps them always."""
    grpo, vllm = run.grpo, settings.vllm
    if settings.engine == "vllm-server":
        return 0, False
    if settings.engine == "vllm":
        if place.cuda:
            return int(vllm.gpu_memory_utilization * place.total), not vllm.sleep
        return weights + int((vllm.kv_cache_gib or 1) * 2**30), True
    prompts = min(grpo.prompts_per_step, max(1, settings.rollout_rows // grpo.responses_per_prompt))
    rows = prompts * grpo.responses_per_prompt
    return rollout_bytes(shape, rows, grpo.max_prompt_tokens + grpo.max_response_tokens), False
