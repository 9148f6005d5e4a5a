"""Resampling: dead groups of a private step are replaced by fresh prompts."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.transformers_engine import TransformersEngine
from pubswap_client.training.memory import TokenBudget
from pubswap_client.training.private_rollout import PrivateGroup, sample_private
from pubswap_client.training.trainer import LocalTrainer
from pubswap_client.training.update import UpdateContext
from pubswap_protocol.model import ModelCard
from pubswap_protocol.problems import Problem
from pubswap_protocol.schedule import private_prompts
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import initial_adapter

LIVE, ZERO, ONE = (0.0, 1.0), (0.0, 0.0), (1.0, 1.0)


def plain(rewards: Sequence[tuple[float, ...]], count: int, draws: int) -> tuple[list[int], int]:
    """The problems of a step whose prompts 0, 1, ... have these rewards, and the number of prompts
    taken.
    """
    batch, taken = list(range(count)), count
    for _ in range(draws):
        dead = [problem for problem in batch if len(set(rewards[problem])) == 1]
        fresh = list(range(taken, min(taken + len(dead), len(rewards))))
        taken += len(fresh)
        for problem in fresh:
            if len(set(rewards[problem])) > 1:
                first = next(p for p, old in enumerate(batch) if len(set(rewards[old])) == 1)
                batch[first] = problem
    return batch, taken


def test_dead_groups_are_replaced_as_a_plain_loop_does() -> None:
    """For random rewards: the same problems in the same positions, and equally many prompts
    sampled.
    """
    rng = np.random.default_rng(1)
    for _ in range(300):
        size, draws = int(rng.integers(4, 30)), int(rng.integers(0, 5))
        rewards = [(LIVE, ZERO, ONE)[k] for k in rng.integers(0, 3, size)]
        asked: list[tuple[int, int]] = []

        def draw(number: int, count: int) -> list[PrivateGroup]:
            first = sum(earlier for _, earlier in asked)  # noqa: B023
            asked.append((number, count))  # noqa: B023
            return [PrivateGroup(i, (), rewards[i]) for i in range(first, first + count)]  # noqa: B023

        rollout = sample_private(draw, 4, draws, size)
        batch, taken = plain(rewards, 4, draws)
        assert [group.problem for group in rollout.groups] == batch
        assert rollout.sampled == taken == sum(count for _, count in asked) <= size
        assert rollout.replaced == sum(problem >= 4 for problem in batch)
        assert [number for number, _ in asked] == list(range(len(asked)))
        assert rollout.reward == np.mean(rewards[:4])


def test_resampling_dead_prompts_ends_with_the_budget_or_the_set() -> None:
    """No group is replaced, and no prompt is sampled again."""
    for size, draws, taken in ((100, 3, 16), (10, 64, 10), (4, 64, 4)):
        rollout = sample_private(
            lambda _, count: [PrivateGroup(0, (), ONE)] * count, 4, draws, size
        )
        assert (rollout.sampled, rollout.replaced, len(rollout.groups)) == (taken, 0, 4)
        assert all(group.dead for group in rollout.groups)


Make = Callable[..., LocalTrainer]


@pytest.fixture
def make(
    tiny_qwen3: Path,
    card_of: Callable[[Path], ModelCard],
    run_settings: RunSettings,
    even_scorer: Any,
) -> Make:
    """A function that makes a trainer on 40 problems with changed GRPO settings."""
    torch.set_num_threads(1)
    sums = [
        Problem(id=f"{n}", prompt=f"{n}+{n % 7}=", answer=str(n + n % 7), topic="sum")
        for n in range(40)
    ]

    def made(scorer: Any = even_scorer, **changes: Any) -> LocalTrainer:
        grpo = run_settings.grpo.model_copy(update=changes)
        settings = run_settings.model_copy(
            update={"grpo": grpo, "method": "fedavg", "local_steps": 4}
        )
        policy = Policy.load(tiny_qwen3, card_of(tiny_qwen3), settings, device="cpu")
        updates, engine = UpdateContext(policy, TokenBudget(400)), TransformersEngine(policy)
        trainer = LocalTrainer(updates, engine, "a", sums, scorer)
        trainer.begin_round(1, initial_adapter(policy.card.layout, settings.seed))
        return trainer

    return made


def asked_of(trainer: LocalTrainer) -> list[int]:
    """Record the problems sampled from now on, in order."""
    seen: list[int] = []
    score = trainer.scorer

    def scoring(cases: Sequence[tuple[str, Problem]]) -> list[float]:
        seen.extend(int(problem.id) for _, problem in cases[::4])
        return score(cases)

    trainer.scorer = scoring
    return seen


def test_resampling_walks_the_set_without_repeats(make: Make) -> None:
    """Further draws take the next prompts of the walk; a restart continues from its position."""
    trainer = make(resample=3)
    seen = asked_of(trainer)
    steps = [trainer.private_step(step) for step in (1, 2)]
    snapshot = trainer.snapshot()
    again = make(resample=3)
    later = asked_of(again)
    again.restore(snapshot)
    for one in (trainer, again):
        steps += [one.private_step(step) for step in (3, 4)]
    assert seen == private_prompts(trainer.settings, "a", 40, 0, len(seen))
    assert seen[-len(later) :] == later
    assert len(set(seen)) == min(len(seen), 40) > 12
    assert len(seen) == sum(metrics.prompts_sampled for metrics in steps[:4])
    assert [m.reward for m in steps[2:4]] == [m.reward for m in steps[4:]]
    assert sum(metrics.groups_replaced for metrics in steps) > 0
    for name, factor in trainer.adapter().items():
        assert factor.tobytes() == again.adapter()[name].tobytes()


def test_without_a_budget_nothing_is_resampled(make: Make) -> None:
    """The prompts are the schedule's, however many groups are dead."""
    trainer = make()
    seen = asked_of(trainer)
    metrics = [trainer.private_step(step) for step in (1, 2, 3, 4)]
    assert seen == private_prompts(trainer.settings, "a", 40, 0, 12)
    assert {(m.prompts_sampled, m.groups_replaced) for m in metrics} == {(3, 0)}


def test_replaced_groups_leave_fewer_without_variance(make: Make) -> None:
    """The reported reward is still that of the first prompts, which were not selected."""
    plain_step, rescued = make().private_step(1), make(resample=8).private_step(1)
    assert plain_step.zero_variance_share > rescued.zero_variance_share
    assert plain_step.reward == rescued.reward
    assert rescued.groups_replaced == round(
        3 * (plain_step.zero_variance_share - rescued.zero_variance_share)
    )
