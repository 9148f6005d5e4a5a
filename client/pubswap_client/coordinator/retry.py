"""Which errors to retry, how long to wait before that, and how often to ask for work."""

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pubswap_protocol.command_line.progress_bar import LogThrottle
from pubswap_protocol.errors import PubSwapError

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Backoff:
    """Full jitter: before try n, wait uniformly between 0 and min(cap, base 2^n) seconds."""

    base_seconds: float = 1.0
    cap_seconds: float = 20.0
    tries: int | None = None  # without a limit, as for a daemon

    def delay(self, failures: int) -> float:
        """Seconds to wait after this many failures (1, 2, ...)."""
        longest = min(self.cap_seconds, self.base_seconds * 2.0 ** min(failures, 16))
        return random.uniform(0, longest)  # noqa: S311 - jitter, not a secret


FOREVER = Backoff()
ONCE = Backoff(tries=1)


class RetryState:
    def __init__(self, backoff: Backoff, *more: type[PubSwapError]) -> None:
        """Also retry errors of the classes `more`, besides the retryable ones."""
        self._backoff = backoff
        self._more = more
        self._failures = 0
        self._throttle = LogThrottle(news=0.0)

    def wait(self, error: PubSwapError) -> None:
        """Wait before the next try; raises the error if it should not be retried.

        The wait is at least the coordinator's Retry-After.
        """
        self._failures += 1
        retryable = error.retryable or isinstance(error, self._more)
        if not retryable or self._failures == self._backoff.tries:
            raise error
        seconds = (error.retry_after or 0.0) + self._backoff.delay(self._failures)
        if self._throttle.due(error.detail):  # the same again only each minute
            log.warning("%s Trying again in %.1f s.", error.detail, seconds)
            self._throttle.printed(error.detail)
        time.sleep(seconds)

    def reset(self) -> None:
        self._failures = 0


def retrying(call: Callable[[], T], backoff: Backoff) -> T:
    """The call's result; it is repeated while it fails with a retryable PubSwapError."""
    state = RetryState(backoff)
    while True:
        try:
            return call()
        except PubSwapError as error:
            state.wait(error)


FREE_ANSWERS = 3  # quick ones in a row, before the first pause
IDLE_SECONDS = 2.0


class PollThrottle:
    """Limits the rate of requests whose answers bring nothing to do.

    A coordinator normally waits before such an answer. One that does not must not be polled, and
    each request recorded in the ledger, as fast as it answers.
    """

    def __init__(self) -> None:
        self._in_a_row, self._at = 0, time.monotonic()

    def idle(self) -> None:
        """An answer brought nothing to do: pause after several quick ones in a row."""
        quick = time.monotonic() - self._at < IDLE_SECONDS
        self._in_a_row = self._in_a_row + 1 if quick else 1
        if self._in_a_row > FREE_ANSWERS:
            time.sleep(IDLE_SECONDS)
        self._at = time.monotonic()

    def reset(self) -> None:
        """An answer brought something to do."""
        self._in_a_row, self._at = 0, time.monotonic()
