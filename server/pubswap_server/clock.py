"""The server's clock, used for all deadlines, leases and invites.

It is set once and then counts elapsed seconds, so a jump of the machine's wall clock while the
server runs changes nothing. Replicas that share PostgreSQL set it from the database's clock, so
their own clocks need not agree.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache

# Where available, the clock that also counts the time the machine was asleep.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady() -> float:
    """Seconds since a fixed moment, the same for all processes of this machine."""
    return time.clock_gettime(_STEADY)


def wall() -> datetime:
    """The time on the machine's own clock, which anybody may set at any moment."""
    return datetime.now(UTC)


class Clock:
    """UTC time: the moment it was set to, plus the seconds since then."""

    def __init__(
        self, steady: Callable[[], float] = steady, wall: Callable[[], datetime] = wall
    ) -> None:
        self._steady = steady
        self.origin, self._set_at = wall(), steady()
        self.listening_since = self.origin

    def now(self) -> datetime:
        return self.origin + timedelta(seconds=self._steady() - self._set_at)

    def set(self, moment: datetime, at: float | None = None) -> None:
        """Set the clock to `moment`, as of now or of `at` (steady seconds)."""
        self.origin = moment.astimezone(UTC)
        self._set_at = self._steady() if at is None else at

    def advance_to(self, moment: datetime | None) -> None:
        """Move the clock forward to `moment` if it is behind.

        The machine's clock may have been set back while no server ran, for example by a day. A
        deadline that began before would then come a day late.
        """
        if moment is not None and moment > self.now():
            self.set(moment)

    def listen(self) -> None:
        """Note that members are heard from now on; silence before says nothing about them."""
        self.listening_since = self.now()


@cache
def process_clock() -> Clock:
    """This process's clock, set on the first call."""
    return Clock()


def now() -> datetime:
    """The current time on this process's clock."""
    return process_clock().now()
