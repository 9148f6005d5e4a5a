"""Advantages of the K responses to a prompt, from their rewards.

Tensors are torch's; only their own methods are used, because this package does not import torch.
"""

from typing import Any

from pubswap_protocol.methods.registry import Registrable, Registry

Tensor = Any

EPSILON = 1e-6  # verl's


class Advantage(Registrable):
    """A_k = (r_k - mean) / scale inside each group; A is 0 in a group of equal rewards."""

    def scale(self, rewards: Tensor) -> Tensor:
        """The divisor of each group (G, 1), for rewards (G, K)."""
        raise NotImplementedError

    def of(self, rewards: Tensor) -> Tensor:
        """The advantages (G, K).

        Equal rewards give exactly 0. The formula alone does not ensure this, because the mean of
        K equal floats may have a rounding error.
        """
        centred = rewards - rewards.mean(dim=1, keepdim=True)
        return (centred / self.scale(rewards)).masked_fill(zero_variance(rewards)[:, None], 0.0)


ADVANTAGES = Registry[Advantage]("advantage", default="std")


@ADVANTAGES.register
class ByStd(Advantage):
    """(r - mean) / std, with the unbiased std: GRPO, as in the paper.

    It weighs very easy and very hard prompts more than those in between.
    """

    name = "std"

    def scale(self, rewards: Tensor) -> Tensor:
        return rewards.std(dim=1, keepdim=True) + EPSILON


@ADVANTAGES.register
class Centred(Advantage):
    """r - mean: Dr. GRPO (Liu et al., 2025), whose gradient has no bias by difficulty.

    Advantages are smaller than GRPO's, about half with binary rewards, so the learning rate or the
    clip of the gradient may have to be larger.
    """

    name = "none"

    def scale(self, rewards: Tensor) -> Tensor:
        return 1.0


@ADVANTAGES.register
class ByMean(Advantage):
    """(r - mean) / mean: MaxRL (arXiv 2602.02710), for rewards that are not negative.

    It weighs hard prompts most: with one correct response of K its advantage is K - 1. More
    responses to a prompt make it a better approximation of the likelihood's gradient.
    """

    name = "mean"

    def scale(self, rewards: Tensor) -> Tensor:
        return rewards.mean(dim=1, keepdim=True) + EPSILON


def zero_variance(rewards: Tensor) -> Tensor:
    """Mask (G,) of the groups in `rewards` (G, K) whose K rewards are equal."""
    return (rewards == rewards[:, :1]).all(dim=1)
