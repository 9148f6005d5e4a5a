"""Running out of memory, and estimating the need beforehand."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from benchmarks.workload import Lengths, Workload, frozen_groups
from pubswap_client.policy.groups import Batch, collate
from pubswap_client.policy.memory import Shape
from pubswap_client.policy.policy import Policy
from pubswap_client.training.memory import TokenBudget, factor_bytes, update_bytes
from pubswap_client.training.update import UpdateContext, update
from pubswap_protocol.tensors.adapter import Adapter

LENGTHS = Lengths(prompts=(40, 80), median=200, sigma=0.5, cut=400)
SHORT = Lengths(prompts=(4, 8), median=12, sigma=0.5, cut=30)  # for a CPU
EVERYTHING = 1 << 15


@contextmanager
def little_memory(device: torch.device, policy: Policy) -> Iterator[None]:
    """Leave too little memory for the whole batch: a real limit on a GPU, else an injected one."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(device).total_memory
        limit = torch.cuda.memory_reserved(device) + (64 << 20)
        torch.cuda.set_per_process_memory_fraction(limit / total)  # takes no device without index
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        return

    def refuse(_: object, inputs: tuple[torch.Tensor]) -> None:
        if inputs[0].shape[-1] > 200:
            raise torch.OutOfMemoryError("too many tokens")

    handle = policy.model.get_input_embeddings().register_forward_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()


def batch_of(policy: Policy) -> Batch:
    workload = Workload.make(
        LENGTHS if policy.device.type == "cuda" else SHORT, policy.card.vocabulary
    )
    return collate(frozen_groups(workload))


def updated(policy: Policy, batch: Batch, budget: TokenBudget) -> Adapter:
    """The adapter after an update of two epochs."""
    start = [factor.detach().clone() for factor in policy.trainable()]
    optimizer = torch.optim.SGD(policy.trainable(), lr=1.0)
    update(UpdateContext(policy, budget), optimizer, batch, start)
    return policy.adapter()


def test_an_update_goes_on_with_less_when_memory_runs_out(
    device: torch.device, policy: Policy
) -> None:
    """The budget shrinks, and the adapter changes as with enough memory, up to rounding."""
    batch, start = batch_of(policy), policy.adapter()
    expected = updated(policy, batch, TokenBudget(1024))
    policy.load_adapter(start)
    budget = TokenBudget(EVERYTHING)
    with little_memory(device, policy):
        actual = updated(policy, batch, budget)
    assert budget.tokens < EVERYTHING
    names = sorted(start)
    changes = [
        np.concatenate([(adapter[name] - start[name]).ravel() for name in names])
        for adapter in (actual, expected)
    ]
    assert np.linalg.norm(changes[1]) > 0
    apart = np.linalg.norm(changes[0] - changes[1]) / np.linalg.norm(changes[1])
    assert apart <= (3e-2 if device.type == "cuda" else 1e-4)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_an_update_takes_no_more_than_estimated(
    device: torch.device, policy: Policy, checkpointing: bool
) -> None:
    """The peak above what is loaded, for the whole batch in one pack."""
    if device.type != "cuda":
        pytest.skip("on a CPU the heap would count, too; see the doctor's test_memory.py")
    batch = batch_of(policy)
    tokens = sum(batch.prompt_lengths) + sum(batch.lengths)
    updated(policy, batch, TokenBudget(tokens))  # warm up: allocate what is allocated only once
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    at_start = torch.cuda.memory_allocated(device)
    start = [factor.detach().clone() for factor in policy.trainable()]
    optimizer = torch.optim.AdamW(policy.trainable(), lr=1e-5)
    budget = TokenBudget(tokens)
    metrics = update(UpdateContext(policy, budget, checkpointing), optimizer, batch, start)
    shape = Shape.of(policy.model.config, policy.dtype)
    estimate = update_bytes(shape, tokens, checkpointing, cuda=True)
    estimate += factor_bytes(policy.card.layout.parameters)
    # Add the products with A, which are negligible in a model of real size.
    estimate += tokens * shape.layers * 7 * policy.settings.lora.rank * shape.bytes_per_value
    # Add what lies around the layers, also negligible there: the embeddings, the last norm in both
    # precisions, the states that predict, and their gradient.
    estimate += tokens * shape.hidden * (5 * shape.bytes_per_value + 2 * 4)
    assert metrics.memory_bytes - at_start <= estimate
    assert budget.tokens == tokens
