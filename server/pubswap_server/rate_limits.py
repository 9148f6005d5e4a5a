"""Rate limits: requests by member, and invalid tokens by address."""

import math
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pubswap_protocol.errors import TooManyRequests

K = TypeVar("K")

MAX_KEYS = 10_000
MEMBER_BURST_SECONDS = 2.0  # a burst may be as many requests as are allowed in this time
# Invalid tokens and invites from one address.
FAILURES_PER_SECOND = 1.0
FAILURE_BURST = 20


@dataclass(frozen=True, slots=True)
class Rate:
    """A token bucket's refill rate and size."""

    per_second: float
    burst: float


class Buckets(Generic[K]):
    """A token bucket for each key; the least recently used keys are forgotten."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._full_at: OrderedDict[K, float] = OrderedDict()  # when each bucket is full again

    def wait(self, key: K) -> float:
        """Seconds until the key has a whole token, 0 if it has one now. Takes none."""
        rate = self.rate
        until_full = self._full_at.get(key, -math.inf) - time.monotonic()
        # Less than a microsecond is a rounding error.
        return round(max(0.0, until_full - (rate.burst - 1) / rate.per_second), 6)

    def take(self, key: K) -> float:
        """Take a token and return 0, or take none and return the seconds until there is one."""
        if wait := self.wait(key):
            return wait
        full_at = max(time.monotonic(), self._full_at.get(key, -math.inf))
        _remember(self._full_at, key, full_at + 1 / self.rate.per_second)
        return 0.0

    def charge(self, key: K, tokens: float) -> None:
        """Take more tokens than `take` did, however few are left; a negative number returns them.

        Takes none if the key was forgotten meanwhile.
        """
        if key in self._full_at:
            self._full_at[key] += tokens / self.rate.per_second


def _remember(values: OrderedDict[K, float], key: K, value: float = 0.0) -> None:
    values[key] = value
    values.move_to_end(key)
    while len(values) > MAX_KEYS:
        values.popitem(last=False)


@dataclass
class RequestLimits:
    """The limits of one server process: requests by member, and failures by address.

    An address that has failed too often is refused before the database is queried. Tokens that were
    recently valid are exempt, so that members behind one address do not suffer for each other.
    """

    members: Buckets[int]
    failures: Buckets[str] = field(
        default_factory=lambda: Buckets(Rate(FAILURES_PER_SECOND, FAILURE_BURST))
    )
    _valid: OrderedDict[str, float] = field(default_factory=OrderedDict)

    def check_peer(self, peer: str, secret_sha256: str) -> None:
        """Raises TooManyRequests for an address that has failed too often."""
        if secret_sha256 not in self._valid and (wait := self.failures.wait(peer)):
            raise _too_many("Too many invalid tokens came from this address", wait)

    def failed(self, peer: str, secret_sha256: str = "") -> None:
        """Count a failure of an address, and forget that the token was valid before."""
        self._valid.pop(secret_sha256, None)
        self.failures.take(peer)

    def passed(self, secret_sha256: str) -> None:
        _remember(self._valid, secret_sha256)

    def check_member(self, member: int) -> None:
        """Count a request of a member; raises TooManyRequests."""
        if wait := self.members.take(member):
            rate = self.members.rate
            allowed = f"{rate.per_second:g} requests a second, {rate.burst:g} at once"
            raise _too_many(f"A member may make {allowed}", wait)


def _too_many(reason: str, wait: float) -> TooManyRequests:
    seconds = max(1, math.ceil(wait))
    return TooManyRequests(f"{reason}; try again in {seconds} s.", retry_after=seconds)
