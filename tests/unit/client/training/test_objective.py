"""The objective's value and gradient against plain Python loops."""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from pubswap_client.training.objective import (
    Targets,
    fedprox_penalty,
    k3,
    objective,
)
from pubswap_protocol.methods.clippings import CLIPPINGS
from pubswap_protocol.settings import GrpoSettings

LENGTHS = [5, 2, 1, 4, 3, 5]
WIDTH = 5
LONGEST = 7


@dataclass
class ObjectiveCase:
    """Arrays for six responses: log-probabilities (B, T), and the rest (B,)."""

    logprobs: np.ndarray
    old: np.ndarray
    behaviour: np.ndarray
    reference: np.ndarray
    advantages: list[float]
    donated: list[bool]

    def targets(self, settings: GrpoSettings) -> Targets:
        mask = torch.tensor([[t < length for t in range(WIDTH)] for length in LENGTHS])
        return Targets(
            advantages=torch.tensor(self.advantages, dtype=torch.float64)[:, None],
            weights=settings.loss_aggregation.coefficients(mask, LONGEST).double(),
            old=torch.tensor(self.old),
            donated=torch.tensor(self.donated)[:, None],
            behaviour=torch.tensor(self.behaviour),
            reference=torch.tensor(self.reference),
        )


@pytest.fixture
def case() -> ObjectiveCase:
    """Ratios from about 0.05 to 20, so that every branch of the clip is used."""
    rng = np.random.default_rng(0)
    shape = (len(LENGTHS), WIDTH)
    old = rng.uniform(-3, -0.5, shape)
    change = rng.normal(0, 1.0, shape)
    change[3:5, 0] = 0.1  # inside the clip, for a negative and a positive advantage
    return ObjectiveCase(
        logprobs=old + change,
        old=old,
        behaviour=old + rng.normal(0, 0.7, shape),
        reference=old + rng.normal(0, 0.5, shape),
        advantages=[1.2, -0.8, 0.0, -1.5, 0.7, -0.3],
        donated=[False, True, False, True, True, False],
    )


def by_hand(
    case: ObjectiveCase, s: GrpoSettings, decoupled: bool
) -> tuple[float, np.ndarray, float, float]:
    """Loss, its gradient (B, T), KL and clip share, token by token."""
    loss = kl = clipped = 0.0
    gradient = np.zeros_like(case.logprobs)
    for row, length in enumerate(LENGTHS):
        advantage, donated = case.advantages[row], case.donated[row]
        for t in range(length):
            coefficient = 1 / sum(LENGTHS)
            if s.loss_aggregation.name == "sequence_mean":
                coefficient = 1 / (len(LENGTHS) * length)
            elif s.loss_aggregation.name == "constant":
                coefficient = 1 / (len(LENGTHS) * LONGEST)
            logprob, old = case.logprobs[row, t], case.old[row, t]
            behaviour, reference = case.behaviour[row, t], case.reference[row, t]
            weight = 1.0
            if not donated and s.rollout_correction == "token_truncate":
                weight = min(math.exp(old - behaviour), 2.0)
            if donated and decoupled:
                weight = min(math.exp(old - behaviour), 2.0)
            ratio = math.exp(logprob - old)
            free = ratio * advantage
            bound = min(max(ratio, 1 - s.clipping.low), 1 + s.clipping.high) * advantage
            term, slope = (free, free) if free <= bound else (bound, 0.0)
            gap = reference - logprob
            divergence = math.exp(gap) - gap - 1
            loss += coefficient * (-weight * term + s.kl_beta * divergence)
            gradient[row, t] = coefficient * (-weight * slope + s.kl_beta * (1 - math.exp(gap)))
            kl += coefficient * divergence
            clipped += coefficient * (slope == 0.0 and advantage != 0)
    return loss, gradient, kl, clipped


@pytest.mark.parametrize(
    ("aggregation", "decoupled", "rollout_correction"),
    list(
        itertools.product(
            ["sequence_mean", "token_mean", "constant"],
            [False, True],
            ["token_truncate", "none"],
        )
    ),
)
def test_value_and_gradient_are_those_of_the_loop(
    case: ObjectiveCase,
    aggregation: str,
    decoupled: bool,
    rollout_correction: str,
) -> None:
    """All aggregations, donor ratios and corrections agree with the equations."""
    settings = GrpoSettings.model_validate(
        {
            "loss_aggregation": aggregation,
            "rollout_correction": rollout_correction,
            "kl_beta": 0.1,
        }
    )
    logprobs = torch.tensor(case.logprobs, requires_grad=True)
    loss = objective(logprobs, case.targets(settings), settings, decoupled=decoupled)
    loss.total.backward()
    value, gradient, kl, clipped = by_hand(case, settings, decoupled)
    assert loss.total.item() == pytest.approx(value, abs=1e-7)
    assert logprobs.grad is not None
    assert np.abs(logprobs.grad.numpy() - gradient).max() < 1e-7
    assert loss.kl.item() == pytest.approx(kl, abs=1e-6)
    assert loss.clip_share.item() == pytest.approx(clipped, abs=1e-6)
    assert 0 < clipped < 1
    given = [
        advantage * donated
        for advantage, donated in zip(case.advantages, case.donated, strict=True)
    ]
    *_, of_donated = by_hand(replace(case, advantages=given), settings, decoupled)
    assert loss.donated_clip_share.item() == pytest.approx(of_donated, abs=1e-6)


def by_response(case: ObjectiveCase, s: GrpoSettings) -> tuple[float, np.ndarray, float]:
    """Loss, gradient (B, T) and clip share of both clippings, response by response.

    Without a correction or a KL term.
    """
    loss = clipped = 0.0
    gradient = np.zeros_like(case.logprobs)
    low, high = 1 - s.clipping.low, 1 + s.clipping.high
    for row, length in enumerate(LENGTHS):
        advantage = case.advantages[row]
        ratios = [math.exp(case.logprobs[row, t] - case.old[row, t]) for t in range(length)]
        whole = math.prod(ratios) ** (1 / length)
        for t in range(length):
            coefficient = 1 / (len(LENGTHS) * length)
            ratio = whole if s.clipping.by_sequence else ratios[t]
            too_far = ratio > high if advantage > 0 else ratio < low and advantage < 0
            term = (min(ratio, high) if advantage > 0 else max(ratio, low)) * advantage
            slope = 0.0 if too_far else ratio * advantage
            clipped += coefficient * too_far
            loss -= coefficient * term
            gradient[row, t] = -coefficient * slope
    return loss, gradient, clipped


def bounds(clipping: str) -> dict[str, object]:
    """A clipping of so small a range that a whole own response is clipped."""
    return {"name": clipping, "low": 0.05, "high": 0.25}


@pytest.mark.parametrize("clipping", CLIPPINGS.names)
def test_both_clippings_are_those_of_the_loop(case: ObjectiveCase, clipping: str) -> None:
    """Value, gradient and clip share from flat tokens in any order, as in a pack."""
    settings = GrpoSettings.model_validate(
        {
            "clipping": bounds(clipping),
            "rollout_correction": "none",
            "kl_beta": 0.0,
        }
    )
    padded = case.targets(settings)
    mask = padded.weights.flatten() > 0
    order = torch.randperm(int(mask.sum()), generator=torch.Generator().manual_seed(1))
    tokens = mask.nonzero().flatten()[order]
    shape = case.logprobs.shape
    targets = Targets(
        advantages=padded.advantages.expand(shape).flatten(),
        weights=padded.weights.flatten(),
        old=padded.old.flatten(),
        donated=padded.donated.expand(shape).flatten(),
        behaviour=padded.behaviour.flatten(),
        reference=None,
        sequences=torch.arange(shape[0]).repeat_interleave(shape[1]),
    ).take(tokens)
    logprobs = torch.tensor(case.logprobs, requires_grad=True)
    loss = objective(logprobs.flatten()[tokens], targets, settings)
    loss.total.backward()
    value, gradient, clipped = by_response(case, settings)
    assert loss.total.item() == pytest.approx(value, abs=1e-7)
    assert logprobs.grad is not None
    assert np.abs(logprobs.grad.numpy() - gradient).max() < 1e-7
    assert loss.clip_share.item() == pytest.approx(clipped, abs=1e-6)
    assert 0 < clipped < 1


def test_a_whole_response_s_tokens_are_clipped_or_none(case: ObjectiveCase) -> None:
    """With sequence clipping, which gives another objective here than token clipping."""
    token, sequence = (
        by_response(case, GrpoSettings.model_validate({"clipping": bounds(clipping)}))
        for clipping in ("token", "sequence")
    )
    assert abs(token[0] - sequence[0]) > 1e-2
    stopped = [(sequence[1][row, :length] == 0).tolist() for row, length in enumerate(LENGTHS)]
    assert [set(row) for row in stopped] == [{False}, {True}, {True}, {False}, {False}, {True}]


def test_the_decoupled_weight_does_not_touch_own_rows_or_the_kl(case: ObjectiveCase) -> None:
    """Without donated rows, both donor ratios give the same objective."""
    case.donated = [False] * len(LENGTHS)
    losses = []
    settings = GrpoSettings()
    for decoupled in (False, True):
        targets = case.targets(settings)
        loss = objective(torch.tensor(case.logprobs), targets, settings, decoupled=decoupled)
        losses.append(loss.total.item())
    assert losses[0] == losses[1]


def test_parts_of_a_batch_add_up(case: ObjectiveCase) -> None:
    """Weights are those of the whole batch, so its tokens' losses sum to its loss."""
    settings = GrpoSettings()
    targets, logprobs = case.targets(settings), torch.tensor(case.logprobs)
    whole = objective(logprobs, targets, settings)
    assert targets.reference is not None
    flat = Targets(
        advantages=targets.advantages.expand_as(logprobs).flatten(),
        weights=targets.weights.flatten(),
        old=targets.old.flatten(),
        donated=targets.donated.expand_as(logprobs).flatten(),
        behaviour=targets.behaviour.flatten(),
        reference=targets.reference.flatten(),
    )
    order = torch.randperm(logprobs.numel(), generator=torch.Generator().manual_seed(0))
    parts = [
        objective(logprobs.flatten()[places], flat.take(places), settings)
        for places in order.split(7)
    ]
    for name in ("total", "kl", "clip_share"):
        total = sum(getattr(part, name).item() for part in parts)
        assert total == pytest.approx(getattr(whole, name).item(), abs=1e-12)


def test_an_entropy_bonus_lowers_the_loss(case: ObjectiveCase) -> None:
    """By the coefficient times the mean entropy, with the loss's own weights."""
    settings = GrpoSettings(entropy_coefficient=0.5)
    targets, logprobs = case.targets(settings), torch.tensor(case.logprobs)
    entropy = torch.full_like(logprobs, 2.0)
    with_bonus = objective(logprobs, targets, settings, entropy)
    without = objective(logprobs, targets, settings)
    assert (without.total - with_bonus.total).item() == pytest.approx(1.0)


def test_k3_is_the_estimator_by_hand_and_never_negative() -> None:
    """exp(d) - d - 1 with d = ref - theta; 0 when they agree."""
    logprobs, reference = torch.tensor([-1.0, -2.0, -0.5]), torch.tensor([-1.0, -1.5, -3.0])
    expected = [math.exp(d) - d - 1 for d in (0.0, 0.5, -2.5)]
    assert k3(logprobs, reference).tolist() == pytest.approx(expected, abs=1e-6)


def test_impossible_peer_log_probabilities_do_not_overflow() -> None:
    """A donor's -1e30 gives a finite loss and gradient, even with an advantage of 0."""
    settings = GrpoSettings()
    logprobs = torch.tensor([[-1.0], [-1.0]], requires_grad=True)
    targets = Targets(
        advantages=torch.tensor([[0.0], [-1.0]]),
        weights=torch.full((2, 1), 0.5),
        old=torch.full((2, 1), -1.0),
        donated=torch.tensor([[True], [True]]),
        behaviour=torch.full((2, 1), -1e30),
        reference=torch.full((2, 1), -1e30),
    )
    loss = objective(logprobs, targets, settings, decoupled=True)
    loss.total.backward()
    assert logprobs.grad is not None
    assert torch.isfinite(loss.total)
    assert torch.isfinite(logprobs.grad).all()


def test_fedprox_is_half_mu_times_the_sum_of_squares() -> None:
    """Over all factors; its gradient is mu (theta - theta_round)."""
    rng = np.random.default_rng(1)
    now = [rng.normal(size=(2, 3)), rng.normal(size=(4, 2))]
    start = [rng.normal(size=(2, 3)), rng.normal(size=(4, 2))]
    parameters = [torch.nn.Parameter(torch.tensor(array)) for array in now]
    penalty = fedprox_penalty(parameters, [torch.tensor(array) for array in start], mu=0.1)
    penalty.backward()
    squares = 0.0
    for a, b in zip(now, start, strict=True):
        for x, y in zip(a.flat, b.flat, strict=True):
            squares += (x - y) ** 2
    assert penalty.item() == pytest.approx(0.05 * squares)
    for parameter, a, b in zip(parameters, now, start, strict=True):
        assert parameter.grad is not None
        assert np.allclose(parameter.grad.numpy(), 0.1 * (a - b))
