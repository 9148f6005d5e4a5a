"""Closing of a round or an exchange: all members are in, or a quorum after the deadline."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from pubswap_protocol.settings import AggregationSettings, SwapSettings


@dataclass(frozen=True, slots=True)
class Turnout:
    """The numbers of members that have arrived and may still come, and the first arrival's time.

    A member that arrived and was then suspended or revoked, or is away, still counts as arrived.
    """

    arrived: int
    outstanding: int
    first_at: datetime | None
    quorum: int
    deadline_seconds: float

    @classmethod
    def of(
        cls,
        rules: AggregationSettings | SwapSettings,
        minimum: int | None,
        arrived: int,
        outstanding: int,
        first_at: datetime | None,
    ) -> Self:
        """Take the quorum from a run's rules and the `minimum` of members that it goes on with."""
        quorum = needed(arrived + outstanding, rules.quorum, minimum)
        return cls(arrived, outstanding, first_at, quorum, rules.deadline_seconds)

    @property
    def missing(self) -> int:
        """The number of members that the quorum lacks even if all outstanding ones arrive."""
        return max(0, self.quorum - self.arrived - self.outstanding)

    @property
    def closes_at(self) -> datetime | None:
        """The deadline; None until a quorum has arrived.

        It counts from the first arrival, so that a slow start costs nobody its place.
        """
        if self.first_at is None or self.arrived < max(1, self.quorum):
            return None
        return self.first_at + timedelta(seconds=self.deadline_seconds)

    def closes(self, now: datetime) -> bool:
        """Whether to close now. Never below the quorum, even if nobody else is left."""
        due = self.closes_at
        return due is not None and (now >= due or not self.outstanding)


def needed(present: int, quorum: int, minimum: int | None) -> int:
    """The fewest members that must arrive: the quorum. With a `minimum`, all that are `present` are
    enough if they are fewer than the quorum, but no fewer than the minimum."""
    if minimum is None:
        return quorum
    return minimum if present < minimum else min(quorum, present)
