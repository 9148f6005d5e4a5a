"""How slowly a body may arrive: pure rules, apart from sockets and clocks.

A plain time limit would cut off a large upload over a slow line, and a limit on the mean would let
a client send fast once and then almost nothing for hours. So a body earns time by its bytes: it
begins with `grace` seconds, spends the time in which we wait for it, earns 1 / `bytes_per_second`
by each byte, and never has more than `grace`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The longest wait for a body's next byte, and for all of them; seconds and bytes."""

    idle_seconds: float
    grace_seconds: float
    bytes_per_second: float


class Pace:
    """The seconds of waiting that a body has left."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self._credit = limits.grace_seconds

    @property
    def patience(self) -> float:
        """Seconds to wait for the next bytes."""
        return max(0.0, min(self._credit, self._limits.idle_seconds))

    def spend(self, seconds: float, received: int) -> None:
        """Count a wait, and the bytes that ended it."""
        earned = self._credit - seconds + received / self._limits.bytes_per_second
        self._credit = min(self._limits.grace_seconds, earned)
