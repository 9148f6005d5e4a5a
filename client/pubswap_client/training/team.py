"""The processes that share one update. Alone, there is nothing to share."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from pubswap_client.policy.groups import Batch


class Team(Protocol):
    """One organisation's data-parallel processes, as seen by one of them."""

    @property
    def size(self) -> int:
        """How many processes there are."""
        ...

    @property
    def is_leader(self) -> bool:
        """Whether this is the process that holds the optimizer and speaks to the coordinator."""
        ...

    @property
    def lockstep(self) -> bool:
        """Whether every forward pass needs all processes, so that none may leave one."""
        ...

    def announce(self, batch: Batch, tokens: int, factors: Sequence[Tensor]) -> None:
        """Let the others join an update of these factors, `tokens` tokens at a time."""
        ...

    def share(self, plans: Sequence[list[int]]) -> list[list[int]]:
        """The packs that this process computes; all processes together compute each one once."""
        ...

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor, in place, by its sum over the processes."""
        ...

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor, in place, by the leader's."""
        ...

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any process."""
        ...


class SingleProcess:
    """A single process."""

    size = 1
    is_leader = True
    lockstep = False

    def announce(self, batch: Batch, tokens: int, factors: Sequence[Tensor]) -> None:
        """Nobody to tell."""

    def share(self, plans: Sequence[list[int]]) -> list[list[int]]:
        """All of them."""
        return list(plans)

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Nothing to add."""

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Nobody to give them to."""

    def any(self, flag: bool) -> bool:
        """The flag."""
        return flag


SINGLE = SingleProcess()
