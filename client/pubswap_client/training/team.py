"""The processes that share one update. Alone, there is nothing to share."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Team(Protocol):
    """One organisation's data-parallel processes, as seen by one of them."""

    def share(self, plans: Sequence[list[int]]) -> list[list[int]]:
        """The packs that this process computes; together all processes compute each one once."""
        ...

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor, in place, by its sum over the processes."""
        ...

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any process."""
        ...


class Alone:
    """A single process."""

    def share(self, plans: Sequence[list[int]]) -> list[list[int]]:
        """All of them."""
        return list(plans)

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Nothing to add."""

    def any(self, flag: bool) -> bool:
        """The flag."""
        return flag
