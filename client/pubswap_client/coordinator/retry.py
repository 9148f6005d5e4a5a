"""What is worth a retry, how long to wait before it, and how often to ask for work."""

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pubswap_protocol.errors import PubSwapError

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Backoff:
    """Full jitter: before try n, wait uniformly between 0 and min(cap, base 2^n) seconds."""

    base_seconds: float = 1.0
    cap_seconds: float = 20.0
    tries: int | None = None  # a daemon never gives up

    def delay(self, failures: int, draw: Callable[[], float] = random.random) -> float:
        """Seconds to wait after this many failures (1, 2, ...)."""
        return draw() * min(self.cap_seconds, self.base_seconds * 2.0 ** min(failures, 16))


FOREVER = Backoff()
ONCE = Backoff(tries=1)


class RetryState:
    def __init__(
        self,
        backoff: Backoff,
        *more: type[PubSwapError],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Besides what is retryable anyhow, errors of the classes `more` are worth a retry here."""
        self._backoff = backoff
        self._more = more
        self._sleep = sleep
        self._failures = 0

    def wait(self, error: PubSwapError) -> None:
        """Wait before the next try; raises the error if there is to be none.

        A coordinator that says when to come again is not asked before.
        """
        self._failures += 1
        retryable = error.retryable or isinstance(error, self._more)
        if not retryable or self._failures == self._backoff.tries:
            raise error
        seconds = (error.retry_after or 0.0) + self._backoff.delay(self._failures)
        log.warning("%s Trying again in %.1f s.", error.detail, seconds)
        self._sleep(seconds)

    def renew(self) -> None:
        self._failures = 0


def retrying(
    call: Callable[[], T], backoff: Backoff, sleep: Callable[[float], None] = time.sleep
) -> T:
    """The call's result, tried again while it fails with a retryable PubSwapError."""
    state = RetryState(backoff, sleep=sleep)
    while True:
        try:
            return call()
        except PubSwapError as error:
            state.wait(error)


FREE_ANSWERS = 3  # in a row
IDLE_SECONDS = 2.0


class Pace:
    """Slows down whoever is answered at once, again and again, with nothing to be done.

    A coordinator waits before it answers so; one that does not must not be asked, and each question
    recorded, as fast as it answers.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._in_a_row, self._at = 0, clock()

    def idle(self) -> None:
        """Nothing came of an answer: wait, unless few did so quickly."""
        quick = self._clock() - self._at < IDLE_SECONDS
        self._in_a_row = self._in_a_row + 1 if quick else 1
        if self._in_a_row > FREE_ANSWERS:
            self._sleep(IDLE_SECONDS)
        self._at = self._clock()

    def renew(self) -> None:
        """Something came of it."""
        self._in_a_row, self._at = 0, self._clock()
