"""The closing of a round or an exchange: all are in, or a quorum after the deadline."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Turnout:
    """The members that have arrived, those that may still come, and the time of the first.

    A member that arrived and was then suspended or revoked, or is away, still counts as arrived.
    """

    arrived: int
    outstanding: int
    first_at: datetime | None


def needed(turnout: Turnout, quorum: int, minimum: int | None) -> int:
    """The fewest that must arrive: the quorum or, with a minimum, all that are here if these are
    fewer, as long as they are not below the minimum."""
    here = turnout.arrived + turnout.outstanding
    if minimum is None:
        return quorum
    return minimum if here < minimum else min(quorum, here)


def closes(turnout: Turnout, quorum: int, deadline_seconds: float, now: datetime) -> bool:
    """Whether to close now.

    The deadline counts from the first arrival, so that a slow start costs nobody its place.
    Nothing closes below the quorum, also when nobody else is left.
    """
    if turnout.arrived < max(1, quorum):
        return False
    if not turnout.outstanding:
        return True
    due = closes_at(turnout, quorum, deadline_seconds)
    return due is not None and now >= due


def missing(turnout: Turnout, quorum: int) -> int:
    """The members that a quorum lacks, even if all that are left arrive."""
    return max(0, quorum - turnout.arrived - turnout.outstanding)


def closes_at(turnout: Turnout, quorum: int, deadline_seconds: float) -> datetime | None:
    """The deadline; None while only a further arrival can close.

    A deadline beyond the calendar's end never comes.
    """
    if turnout.first_at is None or turnout.arrived < max(1, quorum):
        return None
    try:
        return turnout.first_at + timedelta(seconds=deadline_seconds)
    except OverflowError:
        return None
