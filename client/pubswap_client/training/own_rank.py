"""A member of a lower rank than the run's trains the leading directions of the adapter alone.

The others are in its policy, where they give what they gave when the round began: so it starts at
the global adapter itself, whatever its rank, and what it changes has its rank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pubswap_client.policy.policy import Policy
from pubswap_protocol.tensors.adapter import is_a


@dataclass(frozen=True, slots=True)
class OwnRank:
    """The rank that a member trains."""

    rank: int

    @torch.no_grad()
    def clear(self, policy: Policy, gradients: Sequence[Tensor]) -> None:
        """Take the other directions out of the factors' gradients."""
        for (rest,) in self._rests(policy, gradients):
            rest.zero_()

    @torch.no_grad()
    def put_back(self, policy: Policy, start: Sequence[Tensor]) -> None:
        """Give the other directions what they had at the round's start: they have no decay."""
        for rest, before in self._rests(policy, policy.trainable(), start):
            rest.copy_(before)

    def _rests(self, policy: Policy, *tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
        for name, *each in zip(policy.trained_names(), *tensors, strict=True):
            yield tuple(one[self.rank :] if is_a(name) else one[:, self.rank :] for one in each)
