"""The budget of one submission: seconds of a verifier's time."""

from collections import deque
from dataclasses import dataclass

from pubswap_protocol.verifiers.worker import Scored

# CPU seconds of a response: at first, at least, and those that cost its submission nothing.
QUICK_SECONDS, LEAST_SECONDS, FREE_SECONDS = 0.25, 0.1, 1.0
QUICK_BUDGET = 1.0  # what a submission may lose to responses that are cut off at first
SLOW_TRIES = 2.0  # how many times a response's limit it may lose after that


@dataclass(slots=True)
class Budget:
    """CPU seconds that a submission may lose to responses that are cut off or very slow."""

    left: float
    most: float  # of one response
    least: float

    def limit(self) -> float:
        """The most for the next response: half of what is left, so that none takes all."""
        return max(self.least, min(self.most, self.left / 2))

    def charge(self, scored: Scored) -> None:
        """Count a response; a slow one that comes to an end is paid for in part."""
        lost = scored.seconds if scored.cut_off else max(0.0, scored.seconds - FREE_SECONDS)
        self.left = max(0.0, self.left - lost)


class Case:
    """The verification of one submission: each response quickly, then the slow ones.

    So towers of powers cost the answers beside them nothing, and slow answers have their time
    while not too many are cut off. What is left when the budget is spent is wrong.
    """

    def __init__(self, responses: int, seconds: float) -> None:
        """`seconds` of CPU are the most for one response."""
        self.correct = [False] * responses
        self._first, self._again = deque(range(responses)), deque[int]()
        quick = min(QUICK_SECONDS, seconds)
        self._quick = Budget(QUICK_BUDGET, quick, min(LEAST_SECONDS, seconds))
        self._slow = Budget(SLOW_TRIES * seconds, seconds, 0.0)
        self._cut_off = 0

    @property
    def slow(self) -> bool:
        """Whether it has more slow responses than one has by chance, or only such are left."""
        return not self._first or self._quick.limit() <= self._quick.least

    @property
    def given_up(self) -> int:
        """The responses that are wrong for want of time, once there is no `next`."""
        return self._cut_off + len(self._again)

    def next(self) -> tuple[int, float] | None:
        """The response to score now, and its CPU seconds; None at the end."""
        if self._first:
            return self._first[0], self._quick.limit()
        if self._again and self._slow.limit() > self._quick.most:
            return self._again[0], self._slow.limit()
        return None

    def note(self, scored: Scored) -> None:
        """Keep the score of the `next` response."""
        if self._first:
            position = self._first.popleft()
            self._quick.charge(scored)
            if scored.cut_off:
                self._again.append(position)
        else:
            position = self._again.popleft()
            self._slow.charge(scored)
            self._cut_off += scored.cut_off
        self.correct[position] = scored.score == 1.0
