"""Weights of the clients in the mean."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from pubswap_protocol.bounds import PositiveShare
from pubswap_protocol.methods.registry import Registrable, Registry


class Weights(Registrable):
    """A client's weight in the mean, from its update's metrics; by itself the same for all."""

    def of(self, metrics: Mapping[str, Any]) -> float:
        """The weight of an update with these metrics; weights need not sum to 1."""
        return 1.0

    def largest_share(self, updates: int) -> float:
        """The largest share of the mean of so many updates that one may have."""
        return 1.0


WEIGHTS = Registry[Weights]("way of weighing", default="uniform")


@WEIGHTS.register
class Uniform(Weights):
    """All clients alike."""

    name = "uniform"


@WEIGHTS.register
class Examples(Weights):
    """By private examples, which members report themselves, so that shares are bounded."""

    name = "examples"

    max_share: PositiveShare | None = Field(
        default=None,
        description="Largest share of the mean for one member. By default min(1/2, 2/n) of n "
        "updates. The others share the rest by their weights. If that is impossible, all weigh "
        "the same.",
    )

    def of(self, metrics: Mapping[str, Any]) -> float:
        return float(metrics["examples"])

    def largest_share(self, updates: int) -> float:
        return min(0.5, 2 / updates) if self.max_share is None else self.max_share


@WEIGHTS.register
class Steps(Weights):
    """By the local steps that were made (members.fewest_steps), at most the run's own."""

    name = "steps"

    def of(self, metrics: Mapping[str, Any]) -> float:
        return float(metrics["steps"])
