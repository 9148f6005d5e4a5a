"""Group-relative advantages against a plain loop."""

import math

import pytest
import torch

from pubswap_client.policy.groups import group_advantages, zero_variance


def by_hand(rewards: list[float], epsilon: float) -> list[float]:
    mean = sum(rewards) / len(rewards)
    variance = sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)
    return [(reward - mean) / (math.sqrt(variance) + epsilon) for reward in rewards]


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 1e-4])
def test_advantages_are_centred_and_scaled_by_the_unbiased_deviation(epsilon: float) -> None:
    """Each group is normalised separately, as in the loop."""
    rewards = [[1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0], [0.1, 0.2, 0.7, 0.9]]
    found = group_advantages(torch.tensor(rewards), epsilon)
    expected = torch.tensor([by_hand(group, epsilon) for group in rewards])
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0])
def test_equal_rewards_give_exactly_no_advantage(reward: float, epsilon: float) -> None:
    """Such a group teaches nothing, however its mean is rounded."""
    rewards = torch.full((1, 7), reward)
    assert zero_variance(rewards).all()
    assert (group_advantages(rewards, epsilon) == 0).all()
