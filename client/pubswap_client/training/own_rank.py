"""A member of a lower rank than the run's trains the leading directions of the adapter alone.

The others are in its policy, where they give what they gave when the round began: so it starts at
the global adapter itself, whatever its rank, and what it changes has its rank.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pubswap_client.policy.policy import Policy
from pubswap_protocol.tensors.adapter import is_a


@torch.no_grad()
def clear_others(policy: Policy, rank: int, gradients: Sequence[Tensor]) -> None:
    """Take the other directions out of the factors' gradients."""
    for others in _others(policy, rank, gradients):
        others.zero_()


@torch.no_grad()
def put_others_back(policy: Policy, rank: int, start: Sequence[Tensor]) -> None:
    """Give the other directions what they had at the round's start: they have no decay."""
    now, before = _others(policy, rank, policy.trainable()), _others(policy, rank, start)
    for others, those in zip(now, before, strict=True):
        others.copy_(those)


def _others(policy: Policy, rank: int, tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    for name, tensor in zip(policy.trained_names(), tensors, strict=True):
        yield tensor[rank:] if is_a(name) else tensor[:, rank:]
