"""The processes that share one update. A single process has nothing to share."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from pubswap_client.policy.groups import Batch
from pubswap_client.training.privacy import GroupClipping


@dataclass(frozen=True, slots=True)
class Update:
    """The batch of an update, computed `tokens` tokens at a time."""

    batch: Batch
    tokens: int
    clipping: GroupClipping | None


class Team:
    """One organisation's data-parallel processes, as seen by one of them.

    Here it is the only one; `ProcessGroup` is a team of several.
    """

    size = 1
    lockstep = False  # whether every forward pass needs all processes, so that none may leave one

    def announce(self, update: Update, factors: Sequence[Tensor]) -> None:
        """Have the other processes join an update of these factors."""

    def share(self, plans: Sequence[list[int]]) -> list[list[int]]:
        """The packs that this process computes; together, the processes compute each pack once."""
        return list(plans)

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor, in place, by its sum over the processes."""

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor, in place, by the leader's."""

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any process."""
        return flag


SINGLE = Team()
