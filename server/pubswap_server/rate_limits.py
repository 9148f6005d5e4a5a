"""Rate limits: requests by member, and invalid tokens by address."""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Generic, TypeVar

from pubswap_protocol.errors import TooManyRequests

K = TypeVar("K")

MAX_KEYS = 10_000
MEMBER_BURST_SECONDS = 2.0  # a burst may be as many requests as are allowed in this time
# Invalid tokens and invites from one address.
FAILURES_PER_SECOND = 1.0
FAILURE_BURST = 20
# Between two reads of all good secrets. A read of 100,000 takes about 0.2 s.
REST_SECONDS = 0.5


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
        self._full_at[key] = full_at + 1 / self.rate.per_second
        self._full_at.move_to_end(key)
        while len(self._full_at) > MAX_KEYS:
            self._full_at.popitem(last=False)
        return 0.0

    def charge(self, key: K, tokens: float) -> None:
        """Take more tokens than `take` did, however few are left; a negative number returns them.

        Takes none if the key was forgotten meanwhile.
        """
        if key in self._full_at:
            self._full_at[key] += tokens / self.rate.per_second


class Use(Flag):
    """What a secret is good for."""

    API = auto()
    DASHBOARD = auto()
    ENROLMENT = auto()


Secrets = Mapping[str, Use]
"""SHA-256s of secrets, each with its use."""


class GoodSecrets:
    """All secrets that are good, read from the database when somebody sends another one.

    A read that begins after the question answers it, so that it knows what any replica has issued.
    It answers all that ask meanwhile: guesses cost a read each `REST_SECONDS`, however many.
    """

    def __init__(self, read: Callable[[], Awaitable[Secrets]]) -> None:
        self._read = read
        self._good: dict[str, Use] = {}
        self._next: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()
        self._rested_at = -math.inf

    async def include(self, secrets: Secrets) -> bool:
        """Whether one of these secrets is good for its use; may wait for a read."""
        if self._known(secrets):
            return True
        if self._next is None:
            self._next = asyncio.create_task(self._read_again())
        # A caller that leaves must not cancel the read for the others.
        await asyncio.shield(self._next)
        return self._known(secrets)

    def forget(self, secret_sha256: str) -> None:
        """Forget a secret that was refused, until the next read."""
        self._good.pop(secret_sha256, None)

    def _known(self, secrets: Secrets) -> bool:
        return any(use in self._good.get(secret, Use(0)) for secret, use in secrets.items())

    async def _read_again(self) -> None:
        async with self._reading:
            await asyncio.sleep(self._rested_at - time.monotonic())
            self._next = None  # whoever asks from here on waits for another read
            try:
                self._good = dict(await self._read())
            finally:
                self._rested_at = time.monotonic() + REST_SECONDS


@dataclass
class RequestLimits:
    """The limits of one server process: requests by member, and failures by address.

    An address that has failed too often is refused without a query of its own. Good secrets are
    exempt, so that members behind one address do not suffer for each other.
    """

    members: Buckets[int]
    good: GoodSecrets
    failures: Buckets[str] = field(
        default_factory=lambda: Buckets(Rate(FAILURES_PER_SECOND, FAILURE_BURST))
    )

    async def check_peer(self, peer: str, secrets: Secrets) -> None:
        """Raises TooManyRequests for an address that has failed too often, unless it sends a good
        secret."""
        if (wait := self.failures.wait(peer)) and not await self.good.include(secrets):
            raise _too_many("Too many invalid tokens came from this address", wait)

    def failed(self, peer: str, secret_sha256: str = "") -> None:
        """Count a failure of an address, and forget that the secret was good."""
        self.good.forget(secret_sha256)
        self.failures.take(peer)

    def check_member(self, member: int) -> None:
        """Count a request of a member; raises TooManyRequests."""
        if wait := self.members.take(member):
            rate = self.members.rate
            allowed = f"{rate.per_second:g} requests a second, {rate.burst:g} at once"
            raise _too_many(f"A member may make {allowed}", wait)


def _too_many(reason: str, wait: float) -> TooManyRequests:
    seconds = max(1, math.ceil(wait))
    return TooManyRequests(f"{reason}; try again in {seconds} s.", retry_after=seconds)
