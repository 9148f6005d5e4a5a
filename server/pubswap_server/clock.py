"""The server's clock: no other is used for deadlines, leases and invites.

It is set once, and then counts the seconds that pass: a jump of the machine's wall clock while the
server runs changes nothing. Replicas that share PostgreSQL set it by the database's clock, so that
their own need not agree.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache

# Also counts the time that the machine slept, where there is such a clock.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady() -> float:
    """Seconds from some fixed moment of this machine, the same for all its processes."""
    return time.clock_gettime(_STEADY)


def wall() -> datetime:
    """What the machine's own clock shows, which somebody may set at any time."""
    return datetime.now(UTC)


class Clock:
    """Moments in UTC: where it was set, and the seconds since then."""

    def __init__(
        self, steady: Callable[[], float] = steady, wall: Callable[[], datetime] = wall
    ) -> None:
        self._steady = steady
        self.origin, self._set_at = wall(), steady()

    def now(self) -> datetime:
        return self.origin + timedelta(seconds=self._steady() - self._set_at)

    def set(self, moment: datetime, at: float | None = None) -> None:
        """It is `moment` now, or was when the steady seconds were `at`."""
        self.origin = moment.astimezone(UTC)
        self._set_at = self._steady() if at is None else at

    def not_before(self, moment: datetime | None) -> None:
        """Set it to `moment` if it shows an earlier one.

        The machine's clock may have been set back while nobody ran: counted from then, a deadline
        that began before would come a day late.
        """
        if moment is not None and moment > self.now():
            self.set(moment)


@cache
def process_clock() -> Clock:
    """This process's clock, set when it is first asked for."""
    return Clock()


def now() -> datetime:
    """The present moment on the process's clock."""
    return process_clock().now()
