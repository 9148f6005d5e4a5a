"""Training at a lower rank than the run's: only the adapter's leading directions are trained.

The other directions stay in the policy with their values from the round's start. So the member
starts at the global adapter itself, whatever its own rank, and its change has that rank.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pubswap_client.policy.policy import Policy
from pubswap_protocol.tensors.adapter import is_a


@torch.no_grad()
def clear_others(policy: Policy, rank: int, gradients: Sequence[Tensor]) -> None:
    """Zero the gradients of the other directions."""
    for others in _others(policy, rank, gradients):
        others.zero_()


@torch.no_grad()
def put_others_back(policy: Policy, rank: int, start: Sequence[Tensor]) -> None:
    """Restore the other directions to their values at the round's start, undoing weight decay."""
    now, initial = _others(policy, rank, policy.trainable()), _others(policy, rank, start)
    for others, those in zip(now, initial, strict=True):
        others.copy_(those)


def _others(policy: Policy, rank: int, tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    for name, tensor in zip(policy.trained_names(), tensors, strict=True):
        yield tensor[rank:] if is_a(name) else tensor[:, rank:]
