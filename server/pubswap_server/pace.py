"""How slowly a request may arrive: pure rules, apart from sockets and clocks.

A plain time limit would cut off a large upload over a slow line, and a limit on the mean would let
a client send fast once and then almost nothing for hours. So a body earns time by its bytes: it
begins with `grace` seconds, spends a second each second, earns 1 / `bytes_per_second` by each byte,
and never has more than `grace`.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Limits:
    """What a connection may take, in seconds and bytes."""

    header_seconds: float
    header_bytes: int
    idle_seconds: float
    grace_seconds: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Pace:
    """Where a body stands: seconds it may still spend, and seconds since its last byte."""

    credit: float
    idle: float = 0.0


def begun(limits: Limits) -> Pace:
    """The pace of a body of which nothing has come."""
    return Pace(credit=limits.grace_seconds)


def after(pace: Pace, limits: Limits, seconds: float, received: int) -> Pace:
    """The pace after `seconds` more in which `received` bytes came."""
    earned = pace.credit - seconds + received / limits.bytes_per_second
    return replace(
        pace,
        credit=min(limits.grace_seconds, earned),
        idle=0.0 if received else pace.idle + seconds,
    )


def too_slow(pace: Pace, limits: Limits) -> bool:
    """Whether to give the body up."""
    return pace.credit < 0 or pace.idle >= limits.idle_seconds
