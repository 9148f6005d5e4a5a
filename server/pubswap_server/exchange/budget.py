"""The verification budget of one submission, in CPU seconds."""

from collections import deque

from pubswap_protocol.verifiers.confined.worker import Scored

# CPU seconds per response: the limit at first, the least limit, and the part that is free.
QUICK_SECONDS, LEAST_SECONDS, FREE_SECONDS = 0.25, 0.1, 1.0
QUICK_BUDGET = 1.0  # CPU seconds that a submission may lose to responses cut off at first
SLOW_TRIES = 2.0  # times a response's limit that it may lose after that


class Case:
    """The verification of one submission: a quick pass over all responses, then the slow ones.

    Answers that never end, such as towers of powers, thus cost the others nothing, and slow answers
    get their time unless too many are cut off. Responses left when the budget is spent are wrong.
    """

    def __init__(self, responses: int, seconds: float) -> None:
        """`seconds` is the limit of CPU time for one response."""
        self.correct = [False] * responses
        self._first, self._again = deque(range(responses)), deque[int]()
        self._seconds, self._quick = seconds, min(QUICK_SECONDS, seconds)
        self._least = min(LEAST_SECONDS, seconds)
        self._remaining = QUICK_BUDGET  # CPU seconds that this pass may still lose
        self._cut_off = 0

    @property
    def slow(self) -> bool:
        """Whether it has more slow responses than by chance, or only slow ones are left."""
        return not self._first or self._limit <= self._least

    @property
    def given_up(self) -> int:
        """The number of responses that are wrong for lack of time, once `next` is None."""
        return self._cut_off + len(self._again)

    @property
    def _limit(self) -> float:
        """CPU seconds for the next response: at most half of what is left, so none takes all."""
        if self._first:
            return max(self._least, min(self._quick, self._remaining / 2))
        return min(self._seconds, self._remaining / 2)

    def next(self) -> tuple[int, float] | None:
        """The index of the response to score now, and its CPU seconds; None at the end."""
        if self._first:
            return self._first[0], self._limit
        if self._again and self._limit > self._quick:
            return self._again[0], self._limit
        return None

    def note(self, scored: Scored, correct: bool) -> None:
        """Keep the verdict on the `next` response.

        A slow one that ends costs its time beyond FREE_SECONDS.
        """
        lost = scored.seconds if scored.cut_off else max(0.0, scored.seconds - FREE_SECONDS)
        self._remaining = max(0.0, self._remaining - lost)
        if self._first:
            position = self._first.popleft()
            if scored.cut_off:
                self._again.append(position)
            if not self._first:
                self._remaining = SLOW_TRIES * self._seconds
        else:
            position = self._again.popleft()
            self._cut_off += scored.cut_off
        self.correct[position] = correct
