"""What goes into a round's aggregation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pubswap_protocol.adapter import AdapterLayout, AdapterSource


@dataclass(frozen=True, slots=True)
class Updates:
    """The clients' adapters theta_n, one each, in the order of their names.

    Sums of floats depend on their order, so this one is the same whatever the order of arrival.
    `weights` need not sum to 1. `previous` is the round's global adapter, and may have tensors
    that clients do not send.
    """

    members: tuple[str, ...]
    sources: tuple[AdapterSource, ...]
    weights: tuple[float, ...]
    previous: AdapterSource

    @property
    def layout(self) -> AdapterLayout:
        """What every client sent."""
        return self.sources[0].layout

    @property
    def shares(self) -> tuple[float, ...]:
        """The weights w_n, summing to 1."""
        total = math.fsum(self.weights)
        return tuple(weight / total for weight in self.weights)

    def only(self, places: Sequence[int]) -> "Updates":
        """Those of some clients, in the same order."""
        return replace(
            self,
            members=tuple(self.members[place] for place in places),
            sources=tuple(self.sources[place] for place in places),
            weights=tuple(self.weights[place] for place in places),
        )
