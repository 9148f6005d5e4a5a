"""Running out of memory in the update: fewer tokens at a time, and the same result."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pubswap_client.policy.groups import Batch, Group, collate
from pubswap_client.policy.memory import is_out_of_memory
from pubswap_client.policy.policy import Policy
from pubswap_client.training.memory import TokenBudget
from pubswap_client.training.team import Team
from pubswap_client.training.update import UpdateContext, update
from pubswap_protocol.errors import OutOfMemory
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.responses import Response

STARVED = Path(__file__).parents[3] / "support" / "chaos" / "starved.py"


@pytest.mark.full
def test_a_starved_process_goes_on_with_less_and_ends_with_the_same_adapter(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    """In a real process with a memory limit, the budget shrinks and the factors agree to 1e-5."""
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 1024, "head_dim": 64}
    folder = make_model("qwen3", initializer_range=0.02, **sizes)
    # Without per-thread arenas and caching, the allocator returns memory at once.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, str(STARVED), str(folder), str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert 16 <= int(done.stdout) < 4096  # the batch has 3,048 tokens
    assert "Memory ran out: continuing with" in done.stderr
    with np.load(tmp_path / "undisturbed.npz") as wanted, np.load(tmp_path / "starved.npz") as got:
        assert sorted(wanted) == sorted(got)
        assert max(float(np.abs(wanted[name] - got[name]).max()) for name in wanted) <= 1e-5
        assert any(float(np.abs(wanted[name]).max()) > 0 for name in wanted if "lora_B" in name)


@pytest.fixture
def batch(make_responses: Callable[..., list[Response]]) -> Batch:
    """Two groups of four."""
    return collate(
        [Group([5, 17], make_responses([3, 9, 5, 6], i), [1.0, 0, 0, 1]) for i in (0, 1)],
    )


def failing(policy: Policy, error: Exception, most: int) -> Any:
    """Make the model fail on packs of more than `most` tokens."""

    def fail(_: object, args: tuple[torch.Tensor]) -> None:
        if args[0].shape[1] > most:
            raise error

    return policy.model.get_input_embeddings().register_forward_pre_hook(fail)


def test_there_is_an_end_to_halving(
    policy: Policy, batch: Batch, run_settings: RunSettings
) -> None:
    """If the smallest packs do not fit, the error says what to do."""
    failing(policy, torch.OutOfMemoryError("CUDA out of memory."), most=0)
    optimizer = torch.optim.SGD(policy.trainable(), lr=0.1)
    with pytest.raises(OutOfMemory, match="gradient_checkpointing"):
        update(UpdateContext(policy, TokenBudget(64)), optimizer, batch, [])


def test_other_errors_are_not_taken_for_a_lack_of_memory(
    policy: Policy, batch: Batch, run_settings: RunSettings
) -> None:
    """They are raised, and the budget stays."""
    failing(policy, RuntimeError("shape mismatch"), most=0)
    budget = TokenBudget(64)
    optimizer = torch.optim.SGD(policy.trainable(), lr=0.1)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        update(UpdateContext(policy, budget), optimizer, batch, [])
    assert budget.tokens == 64
    assert is_out_of_memory(MemoryError())
    for said in ("CUDA error: out of memory", "cuBLAS error: CUBLAS_STATUS_ALLOC_FAILED"):
        assert is_out_of_memory(RuntimeError(said))


def test_a_process_of_a_sharded_model_does_not_retry_alone(
    policy: Policy, batch: Batch, run_settings: RunSettings
) -> None:
    """The others would wait for it in the same layer forever, so it ends and says what to set."""

    class Lockstep(Team):
        lockstep = True

    failing(policy, torch.OutOfMemoryError("CUDA out of memory."), most=20)
    optimizer = torch.optim.SGD(policy.trainable(), lr=0.1)
    budget = TokenBudget(64)
    with pytest.raises(OutOfMemory, match="smaller micro_batch_tokens"):
        update(UpdateContext(policy, budget, team=Lockstep()), optimizer, batch, [])
    assert budget.tokens == 64


def test_a_budget_that_shrank_stays_small(
    policy: Policy, batch: Batch, run_settings: RunSettings
) -> None:
    """The next step does not run out of memory again."""
    failing(policy, torch.OutOfMemoryError("CUDA out of memory."), most=20)
    budget = TokenBudget(64)
    optimizer = torch.optim.SGD(policy.trainable(), lr=0.1)
    update(UpdateContext(policy, budget), optimizer, batch, [])
    assert budget.tokens == 16
