"""Closing of a round or an exchange: all members are in, or a quorum after the deadline."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from pubswap_protocol.methods.method import PubSwap
from pubswap_protocol.settings import AggregationSettings

# Every running member is heard from in this time: it sends a heartbeat every half minute, and the
# time of its last request is written every ten seconds.
HEARD_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The numbers of members that have arrived and may still come, and the first arrival's time.

    A member that arrived and was then suspended or revoked, or is away, still counts as arrived.
    Of those that may still come, `unheard` were not heard from within the deadline's length.
    """

    arrived: int
    outstanding: int
    first_at: datetime | None
    quorum: int
    deadline_seconds: float
    unheard: int = 0

    @classmethod
    def of(
        cls,
        rules: AggregationSettings | PubSwap,
        minimum: int | None,
        arrived: int,
        outstanding: int,
        first_at: datetime | None,
        unheard: int = 0,
    ) -> Self:
        """Take the quorum from a run's rules and the `minimum` of members that it goes on with.

        If the run sets none, it is half of those that have arrived or were heard from: an early
        member does not make the others late, and the dead stop nothing.
        """
        quorum = rules.quorum or half(arrived + outstanding - unheard)
        quorum = needed(arrived + outstanding, quorum, minimum)
        return cls(arrived, outstanding, first_at, quorum, rules.deadline_seconds, unheard)

    @property
    def missing(self) -> int:
        """The number of members that the quorum lacks even if all outstanding ones arrive."""
        return max(0, self.quorum - self.arrived - self.outstanding)

    @property
    def in_the_way(self) -> int:
        """The number of members to suspend until those that have arrived are half."""
        return max(0, self.outstanding - self.unheard - self.arrived)

    @property
    def closes_at(self) -> datetime | None:
        """The deadline; None until a quorum has arrived.

        It counts from the first arrival, so that a slow start costs nobody its place.
        """
        return self.deadline if self.arrived >= max(1, self.quorum) else None

    @property
    def deadline(self) -> datetime | None:
        """The time from which a quorum is enough; None before the first arrival."""
        return self.first_at and self.first_at + timedelta(seconds=self.deadline_seconds)

    def closes(self, now: datetime) -> bool:
        """Whether to close now. Never below the quorum, even if nobody else is left."""
        due = self.closes_at
        return due is not None and (now >= due or not self.outstanding)

    def overdue(self, now: datetime) -> bool:
        """Whether the deadline has passed, and some have arrived, but no quorum."""
        due = self.deadline
        return due is not None and 0 < self.arrived < self.quorum and now >= due


def half(members: int) -> int:
    """Half of the members, rounded up; never none."""
    return max(1, (members + 1) // 2)


def needed(present: int, quorum: int, minimum: int | None) -> int:
    """The fewest members that must arrive: the quorum. With a `minimum`, all that are `present` are
    enough if they are fewer than the quorum, but no fewer than the minimum."""
    if minimum is None:
        return quorum
    return minimum if present < minimum else min(quorum, present)


def heard_since(
    now: datetime, listening_since: datetime, deadline_seconds: float
) -> datetime | None:
    """The time since which a member must have been heard from to count for the quorum.

    None if all count: a coordinator that has just started has heard from nobody yet.
    """
    if now - listening_since < timedelta(seconds=HEARD_SECONDS):
        return None
    return now - timedelta(seconds=max(deadline_seconds, HEARD_SECONDS))
