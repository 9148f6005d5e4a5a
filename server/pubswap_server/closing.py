"""When a round or an exchange closes: all are in, or a quorum is and the deadline has passed."""

from collections.abc import Set
from datetime import datetime, timedelta


def closes(
    expected: Set[str],
    arrived: Set[str],
    quorum: int,
    first_at: datetime | None,
    deadline_seconds: float,
    now: datetime,
) -> bool:
    """Whether to close now.

    `first_at` is when the first arrived; the deadline counts from there, so that a slow start
    costs nobody its place. A member that arrived and was then suspended or revoked still counts
    as arrived. Nothing closes below the quorum, also when nobody else is left.
    """
    if len(arrived) < quorum or first_at is None:
        return False
    if expected <= arrived:
        return True
    due = closes_at(arrived, quorum, first_at, deadline_seconds)
    return due is not None and now >= due


def missing(expected: Set[str], arrived: Set[str], quorum: int) -> int:
    """How many members a quorum is short of, even if all that are left arrive."""
    return max(0, quorum - len(expected | arrived))


def closes_at(
    arrived: Set[str], quorum: int, first_at: datetime | None, deadline_seconds: float
) -> datetime | None:
    """When to look again: the deadline; None while only a further arrival can close.

    A deadline beyond the calendar's end never comes.
    """
    if not arrived or first_at is None or len(arrived) < quorum:
        return None
    try:
        return first_at + timedelta(seconds=deadline_seconds)
    except OverflowError:
        return None
