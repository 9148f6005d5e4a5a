"""The budget of one submission: seconds of a verifier's time."""

from collections import deque

from pubswap_protocol.verifiers.worker import Scored

# CPU seconds of a response: at first, at least, and those that cost its submission nothing.
QUICK_SECONDS, LEAST_SECONDS, FREE_SECONDS = 0.25, 0.1, 1.0
QUICK_BUDGET = 1.0  # what a submission may lose to responses that are cut off at first
SLOW_TRIES = 2.0  # how many times a response's limit it may lose after that


class Case:
    """The verification of one submission: each response quickly, then the slow ones.

    So towers of powers cost the answers beside them nothing, and slow answers have their time
    while not too many are cut off. What is left when the budget is spent is wrong.
    """

    def __init__(self, responses: int, seconds: float) -> None:
        """`seconds` of CPU are the most for one response."""
        self.correct = [False] * responses
        self._first, self._again = deque(range(responses)), deque[int]()
        self._most, self._quick = seconds, min(QUICK_SECONDS, seconds)
        self._least = min(LEAST_SECONDS, seconds)
        self._left = QUICK_BUDGET  # CPU seconds to lose to the responses of this pass
        self._cut_off = 0

    @property
    def slow(self) -> bool:
        """Whether it has more slow responses than one has by chance, or only such are left."""
        return not self._first or self._limit <= self._least

    @property
    def given_up(self) -> int:
        """The responses that are wrong for want of time, once there is no `next`."""
        return self._cut_off + len(self._again)

    @property
    def _limit(self) -> float:
        """The most for the next response: half of what is left, so that none takes all."""
        if self._first:
            return max(self._least, min(self._quick, self._left / 2))
        return min(self._most, self._left / 2)

    def next(self) -> tuple[int, float] | None:
        """The response to score now, and its CPU seconds; None at the end."""
        if self._first:
            return self._first[0], self._limit
        if self._again and self._limit > self._quick:
            return self._again[0], self._limit
        return None

    def note(self, scored: Scored) -> None:
        """Keep the score of the `next` response; a slow one that comes to an end costs a part."""
        lost = scored.seconds if scored.cut_off else max(0.0, scored.seconds - FREE_SECONDS)
        self._left = max(0.0, self._left - lost)
        if self._first:
            position = self._first.popleft()
            if scored.cut_off:
                self._again.append(position)
            if not self._first:
                self._left = SLOW_TRIES * self._most
        else:
            position = self._again.popleft()
            self._cut_off += scored.cut_off
        self.correct[position] = scored.score == 1.0
