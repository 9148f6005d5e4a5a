"""Repeated attempts at a run whose next move fails: ever later, and reported at last."""

import time
from collections.abc import Callable

LATEST_SECONDS = 60.0
TRIES = 3


class Attempts:
    """The failures of each run since its last move, in this process."""

    def __init__(self, first_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Try again after `first_seconds`, then after twice that, and at last every minute."""
        self._first = first_seconds
        self._clock = clock
        self._failed: dict[str, tuple[int, float]] = {}

    def due(self, run: str) -> bool:
        """Whether to try a run again of which nothing new is known."""
        return run not in self._failed or self._clock() >= self._failed[run][1]

    def failed(self, run: str) -> bool:
        """Count a failure; returns whether there have been so many that it is a stall."""
        count = self._failed.get(run, (0, 0.0))[0] + 1
        wait = min(LATEST_SECONDS, self._first * 2 ** min(count, 16))
        self._failed[run] = (count, self._clock() + wait)
        return count >= TRIES

    def moved(self, run: str) -> None:
        self._failed.pop(run, None)
