"""Group-relative advantages against a plain loop."""

import math

import pytest
import torch

from pubswap_protocol.methods.advantages import ADVANTAGES, EPSILON, zero_variance

REWARDS = [[1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0], [0.1, 0.2, 0.7, 0.9]]


def by_hand(name: str, rewards: list[float]) -> list[float]:
    """One group's advantages, as in the papers."""
    mean = sum(rewards) / len(rewards)
    variance = sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)
    scale = {"std": math.sqrt(variance) + EPSILON, "mean": mean + EPSILON, "none": 1.0}[name]
    return [(reward - mean) / scale for reward in rewards]


@pytest.mark.parametrize("name", ADVANTAGES.names)
def test_each_group_is_normalised_by_itself(name: str) -> None:
    """It is centred, and divided by its unbiased deviation, its mean, or nothing."""
    found = ADVANTAGES.read(name).of(torch.tensor(REWARDS))
    expected = torch.tensor([by_hand(name, group) for group in REWARDS])
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("name", ADVANTAGES.names)
@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0])
def test_equal_rewards_give_exactly_no_advantage(reward: float, name: str) -> None:
    """Such a group teaches nothing, however its mean is rounded."""
    rewards = torch.full((1, 7), reward)
    assert zero_variance(rewards).all()
    assert (ADVANTAGES.read(name).of(rewards) == 0).all()


def test_one_right_answer_of_k_has_maxrl_s_advantage() -> None:
    """K - 1, as the gradient of the likelihood of a right answer weighs a hard prompt."""
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    assert ADVANTAGES.read("mean").of(rewards)[0, 0].item() == pytest.approx(7, rel=1e-4)
