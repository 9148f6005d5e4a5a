"""What is worth a retry, and how long to wait before it."""

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
    tries: int | None = None

    def delay(self, failures: int, draw: Callable[[], float] = random.random) -> float:
        """Seconds to wait after this many failures (1, 2, ...)."""
        return draw() * min(self.cap_seconds, self.base_seconds * 2.0 ** min(failures, 16))

    def exhausted(self, failures: int) -> bool:
        """Whether to give up; a daemon never does."""
        return self.tries is not None and failures >= self.tries


FOREVER = Backoff()
ONCE = Backoff(tries=1)


def retrying(
    call: Callable[[], T], backoff: Backoff, sleep: Callable[[float], None] = time.sleep
) -> T:
    """The call's result, tried again while it fails with a retryable PubSwapError."""
    failures = 0
    while True:
        try:
            return call()
        except PubSwapError as error:
            failures += 1
            if not error.retryable or backoff.exhausted(failures):
                raise
            seconds = backoff.delay(failures)
            log.warning("%s Trying again in %.1f s.", error.detail, seconds)
            sleep(seconds)
