"""How often a member may ask, and how often an address may come with a token that is not valid."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pubswap_protocol.errors import TooManyRequests

K = TypeVar("K")

MOST_KEYS = 10_000


@dataclass(frozen=True, slots=True)
class Rate:
    """A token bucket's size and how fast it fills."""

    per_second: float
    burst: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """A token bucket as it was left: tokens in it, and when that was, in seconds."""

    tokens: float
    at: float


def filled(bucket: Bucket | None, rate: Rate, now: float) -> Bucket:
    """The bucket as it is now; a new one is full."""
    if bucket is None:
        return Bucket(rate.burst, now)
    gained = max(0.0, now - bucket.at) * rate.per_second
    return Bucket(min(rate.burst, bucket.tokens + gained), now)


def seconds_until_token(bucket: Bucket, rate: Rate) -> float:
    """How long until there is a whole token; 0 if there is one."""
    return max(0.0, 1 - bucket.tokens) / rate.per_second


class Buckets(Generic[K]):
    """A bucket for each key; the keys asked for longest ago are forgotten."""

    def __init__(self, rate: Rate, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self._clock = clock
        self._buckets: OrderedDict[K, Bucket] = OrderedDict()

    def wait(self, key: K) -> float:
        """Seconds until the key has a token; takes none."""
        return seconds_until_token(self._now(key), self.rate)

    def take(self, key: K) -> float:
        """Take a token and return 0; or leave all, and return the seconds until there is one."""
        bucket = self._now(key)
        wait = seconds_until_token(bucket, self.rate)
        taken = bucket if wait else Bucket(bucket.tokens - 1, bucket.at)
        self._buckets[key] = taken
        self._buckets.move_to_end(key)
        while len(self._buckets) > MOST_KEYS:
            self._buckets.popitem(last=False)
        return wait

    def give_back(self, key: K) -> None:
        """Undo a `take`."""
        bucket = self._now(key)
        self._buckets[key] = Bucket(min(self.rate.burst, bucket.tokens + 1), bucket.at)

    def _now(self, key: K) -> Bucket:
        return filled(self._buckets.get(key), self.rate, self._clock())


@dataclass
class RequestLimits:
    """The limits of one server process: by member, and by address for what fails.

    An address that has failed too often is refused before the database is asked, but for tokens
    that were valid a while ago: members behind one address do not suffer for each other.
    """

    members: Buckets[int]
    failures: Buckets[str]
    _known: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def check_peer(self, peer: str, secret_sha256: str) -> None:
        """Raises TooManyRequests for an address that has failed too often."""
        if secret_sha256 in self._known:
            return
        if wait := self.failures.wait(peer):
            raise _too_many("Too many tokens from this address were not valid", wait)

    def failed(self, peer: str) -> None:
        """Count a token or invite that was not valid."""
        self.failures.take(peer)

    def passed(self, secret_sha256: str) -> None:
        """Remember a token that was valid."""
        self._known[secret_sha256] = None
        self._known.move_to_end(secret_sha256)
        while len(self._known) > MOST_KEYS:
            self._known.popitem(last=False)

    def check_member(self, member: int) -> None:
        """Count a request of a member; raises TooManyRequests."""
        if wait := self.members.take(member):
            rate = self.members.rate
            allowed = f"{rate.per_second:g} requests a second, {rate.burst} at once"
            raise _too_many(f"A member may make {allowed}", wait)

    def forgive_member(self, member: int) -> None:
        """Do not count a request of a member that was counted."""
        self.members.give_back(member)


def _too_many(reason: str, wait: float) -> TooManyRequests:
    seconds = max(1, math.ceil(wait))
    return TooManyRequests(f"{reason}; try again in {seconds} s.", retry_after=seconds)
