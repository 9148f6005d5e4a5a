"""Whose turn it is: runs take turns, in each run its members, and a member has one at a time."""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class FairQueue(Generic[T]):
    """Work of members of runs, in a fair order."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, OrderedDict[str, deque[T]]] = OrderedDict()
        self._busy: set[tuple[str, str]] = set()

    def add(self, run: str, member: str, work: T) -> None:
        """Queue a member's work behind its own."""
        self._runs.setdefault(run, OrderedDict()).setdefault(member, deque()).append(work)

    def take(self, fits: Callable[[T], bool] = lambda work: True) -> tuple[str, str, T] | None:
        """The next work that fits, of a member that has none in hand: its run, its member, itself.

        It stays the member's first until it is `given_back`.
        """
        for run, members in self._runs.items():
            for member, queue in members.items():
                if (run, member) not in self._busy and fits(queue[0]):
                    self._busy.add((run, member))
                    members.move_to_end(member)
                    self._runs.move_to_end(run)
                    return run, member, queue[0]
        return None

    def give_back(self, run: str, member: str, done: bool) -> None:
        """End a turn; work that is not done waits for another."""
        self._busy.discard((run, member))
        if not done:
            return
        members = self._runs[run]
        members[member].popleft()
        if not members[member]:
            del members[member]
        if not members:
            del self._runs[run]
