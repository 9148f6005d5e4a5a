"""Private steps: each group's gradient is clipped exactly, and the noise has the right scale."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pubswap_client.policy.groups import Group, collate
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.transformers_engine import TransformersEngine
from pubswap_client.training.accountant import Releases
from pubswap_client.training.memory import TokenBudget
from pubswap_client.training.objective import objective
from pubswap_client.training.privacy import GroupClipping, PrivateDraws, StepNoise
from pubswap_client.training.trainer import LocalTrainer
from pubswap_client.training.update import UpdateContext, update
from pubswap_protocol.draws import SecretDraws
from pubswap_protocol.errors import WrongState
from pubswap_protocol.model import ModelCard
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import PrivacySettings, RunSettings
from pubswap_protocol.tensors.adapter import Adapter, initial_adapter
from pubswap_protocol.tensors.responses import Response
from support.client.reference import padded_scores, padded_targets

RATE, B = 0.05, 8  # the expected number of groups exceeds the drawn one
DRAWS = SecretDraws(bytes(32))
Groups = list[Group]


@pytest.fixture
def groups(make_responses: Callable[..., list[Response]]) -> Groups:
    """Five groups of four, one of them with equal rewards."""
    rng = np.random.default_rng(3)
    return [
        Group(
            rng.integers(3, 40, int(rng.integers(1, 20))).tolist(),
            make_responses([int(n) for n in rng.integers(1, 13, 4)], seed),
            [1.0] * 4 if seed == 2 else [1.0, 0.0, 0.0, float(rng.integers(0, 2))],
        )
        for seed in range(5)
    ]


def quiet(clip: float) -> StepNoise:
    """Clipping without noise."""
    return StepNoise(GroupClipping(clip, B), 0.0, DRAWS)


def trained(
    policy: Policy, groups: Groups, settings: RunSettings, noise: StepNoise, budget: int = 60
) -> Adapter:
    """The result of an update by plain gradient descent; the policy's adapter is restored
    afterwards.
    """
    start = policy.adapter()
    optimizer = torch.optim.SGD(policy.trainable(), lr=RATE)
    batch = collate(groups)
    policy.settings = settings
    update(UpdateContext(policy, TokenBudget(budget)), optimizer, batch, [], noise=noise)
    end = policy.adapter()
    policy.load_adapter(start)
    return end


def slow(
    policy: Policy, groups: Groups, settings: RunSettings, clip: float
) -> tuple[Adapter, list[float]]:
    """The same, one group at a time, padded and by autograd; also the norms in the first epoch."""
    start, grpo = policy.adapter(), settings.grpo
    batches = [collate([group]) for group in groups]
    targets = []
    with torch.no_grad():
        for batch in batches:
            old = padded_scores(policy, batch, grpo.temperature).logprobs
            with policy.reference():
                reference = padded_scores(policy, batch, grpo.temperature).logprobs
            targets.append(padded_targets(batch, settings, old, reference))
    norms = []
    for _ in range(grpo.gradient_epochs):
        factors = policy.trainable()
        total = [torch.zeros_like(factor) for factor in factors]
        for batch, target in zip(batches, targets, strict=True):
            scores = padded_scores(policy, batch, grpo.temperature)
            loss = objective(scores.logprobs, target, grpo, scores.entropy).total
            gradient = torch.autograd.grad(loss, factors)
            norm = norm_of(gradient)
            norms.append(norm)
            for whole, part in zip(total, gradient, strict=True):
                whole += part * min(1.0, clip / norm) / B
        scale = min(1.0, grpo.max_grad_norm / norm_of(total))
        with torch.no_grad():
            for factor, whole in zip(factors, total, strict=True):
                factor -= RATE * scale * whole
    end = policy.adapter()
    policy.load_adapter(start)
    return end, norms[: len(groups)]


def norm_of(tensors: Sequence[Tensor]) -> float:
    return float(torch.cat([tensor.flatten() for tensor in tensors]).norm())


def distance(left: Adapter, right: Adapter) -> float:
    return max(float(np.abs(left[name] - right[name]).max()) for name in left)


@pytest.mark.parametrize("budget", [1, 30, 1 << 20])
def test_each_groups_gradient_is_clipped_exactly(
    policy: Policy, groups: Groups, run_settings: RunSettings, budget: int
) -> None:
    """Two epochs agree with the slow reference within 1e-5, for any micro-batches."""
    _, norms = slow(policy, groups, run_settings, 1.0)
    clip = 1.75
    assert sorted(norm > clip for norm in norms) == [False, False, False, True, True]
    assert sum(0.2 * clip < norm < len(groups) / B * clip for norm in norms) == 2
    expected, _ = slow(policy, groups, run_settings, clip)
    found = trained(policy, groups, run_settings, quiet(clip), budget)
    assert distance(found, expected) < 1e-5
    assert distance(found, policy.adapter()) > 1e-3
    assert distance(found, trained(policy, groups, run_settings, quiet(2 * clip))) > 1e-4


def test_no_group_moves_the_gradient_by_more_than_the_clip(
    policy: Policy, groups: Groups, run_settings: RunSettings
) -> None:
    """With or without the group, a step differs by at most C / b, to which the noise is scaled.

    That would fail if a group's share depended on the number of other groups.
    """
    grpo = run_settings.grpo.model_copy(update={"gradient_epochs": 1, "max_grad_norm": 1e9})
    settings = run_settings.model_copy(update={"grpo": grpo})
    clip = 1.75
    whole = trained(policy, groups, settings, quiet(clip))
    moved = []
    for left_out in range(len(groups)):
        rest = [group for number, group in enumerate(groups) if number != left_out]
        other = trained(policy, rest, settings, quiet(clip))
        square = sum(float(np.square(whole[name] - other[name]).sum()) for name in whole)
        moved.append(square**0.5 / RATE)
    assert max(moved) == pytest.approx(clip / B, rel=1e-3)
    assert min(moved) < 0.1 * clip / B  # the group of equal rewards only has its KL term


def test_the_noise_is_gaussian_and_has_its_scale() -> None:
    """sigma C / b for each number, different in every tensor and epoch, and reproducible."""
    noise = StepNoise(GroupClipping(2.0, 4), 1.5, DRAWS.within("step", 1, 1, 1))

    def drawn(noise: StepNoise, epoch: int = 0) -> list[Tensor]:
        tensors = [torch.zeros(301, 331), torch.zeros(100_001)]
        noise.add_to(tensors, epoch)
        return tensors

    tensors = drawn(noise)
    scale = 1.5 * 2.0 / 4
    for tensor in tensors:
        values = tensor.flatten().double() / scale
        count = len(values)
        assert abs(float(values.mean())) < 5 / count**0.5
        assert abs(float(values.square().mean()) - 1) < 5 * (2 / count) ** 0.5
        assert abs(float(values.pow(4).mean()) - 3) < 5 * (96 / count) ** 0.5
        for bound, share in ((0.6745, 0.5), (1.96, 0.05), (3.2905, 0.001)):
            found = float((values.abs() > bound).double().mean())
            assert abs(found - share) < 5 * (share / count) ** 0.5
    assert all(torch.equal(*pair) for pair in zip(tensors, drawn(noise), strict=True))
    others = [
        drawn(noise, 1),
        drawn(StepNoise(noise.clipping, 1.5, DRAWS.within("step", 2, 1, 1))),
        drawn(StepNoise(noise.clipping, 1.5, SecretDraws(b"\1" * 32).within("step", 1, 1, 1))),
    ]
    all_drawn = [tensors[1], tensors[0].flatten()[:100_001]]
    all_drawn += [other[1] for other in others]
    together = torch.stack([each[:99_000].flatten() for each in all_drawn])
    correlations = torch.corrcoef(together) - torch.eye(len(all_drawn))
    assert float(correlations.abs().max()) < 5 / 99_000**0.5


def private_draws(groups: int, rate: float) -> PrivateDraws:
    """Draws whose beginnings all cost the same."""
    releases = Releases(rate, noise_multiplier=1.0, epochs=1, steps=1)
    return PrivateDraws(GroupClipping(1.0, groups), lambda beginning: releases, DRAWS)


def test_a_step_draws_each_prompt_independently_with_the_same_probability() -> None:
    """Batch sizes are binomial; all prompts are equally frequent, and drawn independently."""
    draws = private_draws(5, rate=0.1)
    batches = [draws.batch(50, 1, 1, step) for step in range(4000)]
    sizes = np.array([len(batch) for batch in batches])
    assert abs(sizes.mean() - 5) < 5 * (4.5 / 4000) ** 0.5
    assert abs(sizes.var() - 4.5) < 0.6
    often = np.bincount([index for batch in batches for index in batch], minlength=50)
    assert np.abs(often - 400).max() < 5 * 360**0.5
    assert batches[0] == draws.batch(50, 1, 1, 0)
    assert draws.batch(50, 2, 1, 0) != batches[0]
    assert private_draws(5, rate=1.0).batch(3, 1) == [0, 1, 2]


@pytest.fixture
def make_trainer(
    tiny_qwen3: Path,
    card_of: Callable[[Path], ModelCard],
    run_settings: RunSettings,
    problems: list[Problem],
    even_scorer: Any,
) -> Callable[..., LocalTrainer]:
    """A function (rate, private) that makes a trainer for a private run."""

    def make(rate: float, private: bool = True) -> LocalTrainer:
        torch.set_num_threads(1)
        update = {"privacy": PrivacySettings(epsilon=8.0)}
        settings = run_settings.model_copy(update=update)
        policy = Policy.load(tiny_qwen3, card_of(tiny_qwen3), settings, device="cpu")
        draws = private_draws(3, rate)
        return LocalTrainer(
            UpdateContext(policy, TokenBudget(60)),
            TransformersEngine(policy),
            "a",
            problems,
            even_scorer,
            privacy=draws if private else None,
        )

    return make


def test_a_step_that_draws_no_prompt_releases_noise(
    make_trainer: Callable[..., LocalTrainer],
) -> None:
    """Otherwise an unchanged adapter would reveal that the batch was empty."""
    trainer = make_trainer(rate=0.0)
    start = initial_adapter(trainer.policy.card.layout, 3)
    trainer.begin_round(1, start, beginning=1)
    metrics = trainer.private_step(1)
    assert (metrics.prompts_sampled, metrics.tokens, metrics.reward, metrics.kl) == (0, 0, 0, 0)
    assert distance(trainer.adapter(), start) > 1e-3


def test_a_round_begun_again_has_other_prompts_and_other_noise(
    make_trainer: Callable[..., LocalTrainer],
) -> None:
    """Otherwise the difference of two rounds from the same adapter would be free of noise."""
    trainer = make_trainer(rate=0.4)
    start = initial_adapter(trainer.policy.card.layout, 3)
    ends = []
    for beginning in (1, 1, 2):
        trainer.begin_round(1, start, beginning)
        trainer.private_step(1)
        ends.append(trainer.adapter())
    assert distance(ends[0], ends[1]) == 0
    assert distance(ends[1], ends[2]) > 1e-3


def test_a_private_run_is_never_trained_without_noise(
    make_trainer: Callable[..., LocalTrainer],
) -> None:
    """A trainer without noise is refused."""
    with pytest.raises(WrongState, match="if and only if privacy"):
        make_trainer(rate=0.4, private=False)
