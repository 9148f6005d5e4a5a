"""Group-relative advantages (ALGORITHM, step 5)."""

from torch import Tensor


def zero_variance(rewards: Tensor) -> Tensor:
    """Which groups (G,) of `rewards` (G, K) have K equal rewards."""
    return (rewards == rewards[:, :1]).all(dim=1)


def group_advantages(rewards: Tensor, epsilon: float) -> Tensor:
    """A_k = (r_k - mean) / (std + epsilon) inside each group of `rewards` (G, K); std unbiased.

    A group whose rewards are all equal has advantage exactly 0, which the formula alone does not
    promise: the mean of K equal floats may be off by a rounding, and epsilon may be 0.
    """
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    advantages = centred / (rewards.std(dim=1, keepdim=True) + epsilon)
    return advantages.masked_fill(zero_variance(rewards)[:, None], 0.0)
