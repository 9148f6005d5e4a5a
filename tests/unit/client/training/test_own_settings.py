"""Members with a lower rank than the run's, or fewer prompts and responses per step."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pubswap_client.daemon.own_settings import own_rank, own_settings
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.transformers_engine import TransformersEngine
from pubswap_client.settings import ClientSettings
from pubswap_client.training.memory import TokenBudget
from pubswap_client.training.trainer import LocalTrainer
from pubswap_client.training.update import UpdateContext
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.model import ModelCard
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import Adapter

Scorer = Callable[[Sequence[tuple[str, Problem]]], list[float]]
Made = Callable[..., LocalTrainer]


@pytest.fixture
def made(
    tiny_qwen3: Path,
    card_of: Callable[[Path], ModelCard],
    run_settings: RunSettings,
    problems: list[Problem],
    even_scorer: Scorer,
) -> Made:
    """A function that makes a trainer with these settings of its own."""

    def make(**own: Any) -> LocalTrainer:
        torch.set_num_threads(1)
        policy = Policy.load(tiny_qwen3, card_of(tiny_qwen3), run_settings, device="cpu")
        updates = UpdateContext(policy, TokenBudget(60), own_rank=own.pop("own_rank", None))
        engine = TransformersEngine(policy)
        return LocalTrainer(updates, engine, "a", problems, even_scorer, **own)

    return make


def global_adapter(trainer: LocalTrainer) -> Adapter:
    """An adapter whose B factors are not zero."""
    rng = np.random.default_rng(5)
    layout = trainer.policy.card.layout
    return {
        name: rng.normal(scale=0.05, size=shape).astype(np.float32)
        for name, shape in layout.tensors.items()
    }


def trained(trainer: LocalTrainer) -> tuple[Adapter, Adapter]:
    """The adapter before and after a private step."""
    before = global_adapter(trainer)
    trainer.begin_round(1, before)
    trainer.private_step(1)
    return before, trainer.adapter()


def test_a_lower_rank_trains_the_first_directions_and_keeps_the_others_to_the_bit(
    made: Made,
) -> None:
    """Neither gradients nor weight decay change them; with the run's rank, all change."""
    before, after = trained(made(own_rank=1))
    for name, factor in after.items():
        moved, start = (f if "lora_A" in name else f.T for f in (factor, before[name]))
        assert np.array_equal(moved[1:], start[1:])
        assert not np.array_equal(moved[:1], start[:1])
    before, after = trained(made())
    assert not any(
        np.array_equal(after[name][:, -1], before[name][:, -1])
        for name in after
        if "lora_B" in name
    )


def test_a_lower_rank_s_gradient_is_that_of_its_directions(made: Made) -> None:
    """The other directions do not tighten the clipping: its norm is smaller than the whole
    gradient's.
    """
    norms = []
    for trainer in (made(), made(own_rank=1)):
        trainer.begin_round(1, global_adapter(trainer))
        norms.append(trainer.private_step(1).grad_norm)
    assert 0 < norms[1] < 0.99 * norms[0]


def test_a_lower_rank_begins_at_the_global_adapter_itself(made: Made) -> None:
    """Given the same draws, its first responses equal those of a member with the run's rank."""
    rewards = [made(), made(own_rank=1)]
    sampled = []
    for trainer in rewards:
        trainer.begin_round(1, global_adapter(trainer))
        groups = trainer.public_rollout(2, trainer.problems[:2], sampling_seed=3)
        sampled.append([response.tokens.tolist() for group in groups for response in group])
    assert sampled[0] == sampled[1]


def test_fewer_prompts_and_responses_apply_to_private_steps_only(
    made: Made, run_settings: RunSettings
) -> None:
    """Public steps use the run's numbers, because an exchange needs K responses from everybody."""
    grpo = run_settings.grpo.model_copy(update={"prompts_per_step": 1, "responses_per_prompt": 2})
    trainer, asked = made(own_grpo=grpo), []
    generate = trainer.engine.generate

    def recording(prompts: Any, sampling: Any) -> Any:
        asked.append((len(prompts), sampling.count))
        return generate(prompts, sampling)

    trainer.engine.generate = recording  # type: ignore[method-assign]
    trainer.begin_round(1, global_adapter(trainer))
    trainer.private_step(1)
    trainer.public_rollout(2, trainer.problems[:3])
    assert asked == [(1, 2), (3, run_settings.grpo.responses_per_prompt)]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"prompts_per_step": 9}, "above the run's grpo.prompts_per_step = 8"),
        ({"responses_per_prompt": 9}, "above the run's grpo.responses_per_prompt = 8"),
        ({"rank": 33}, "the run takes ranks from 2 to 32"),
        ({"rank": 1}, "the run takes ranks from 2 to 32"),
    ],
)
def test_more_than_the_runs_is_refused(own: dict[str, Any], said: str) -> None:
    """Before training, with the allowed values."""
    run = RunSettings(aggregation={"rule": {"name": "svd", "min_rank": 2}})
    with pytest.raises(InvalidSettings, match=said):
        own_settings(ClientSettings(**own), run)
        own_rank(ClientSettings(**own), run)


def test_a_run_with_a_fixed_rank_accepts_only_that() -> None:
    """Setting that same rank has no effect."""
    with pytest.raises(InvalidSettings, match="the run takes the rank 32"):
        own_rank(ClientSettings(rank=16), RunSettings())
    assert own_rank(ClientSettings(rank=32), RunSettings()) is None
    own = own_settings(ClientSettings(prompts_per_step=8), RunSettings())
    assert own == RunSettings()
