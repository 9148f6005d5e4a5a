"""What goes into a round's aggregation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pubswap_protocol.adapter import AdapterLayout, AdapterSource
from pubswap_server.aggregation.shares import shares_of


@dataclass(frozen=True, slots=True)
class Updates:
    """The clients' adapters theta_n, one each, in the order of their names.

    Sums of floats depend on their order, so this one is the same whatever the order of arrival.
    `weights` need not sum to 1; no share of the mean is over `largest_share`. `previous` is the
    round's global adapter, and may have tensors that clients do not send.
    """

    members: tuple[str, ...]
    sources: tuple[AdapterSource, ...]
    weights: tuple[float, ...]
    previous: AdapterSource
    largest_share: float = 1.0

    @property
    def layout(self) -> AdapterLayout:
        """What every client sent."""
        return self.sources[0].layout

    @property
    def shares(self) -> tuple[float, ...]:
        """The weights w_n, summing to 1."""
        return shares_of(self.weights, self.largest_share)

    def only(self, places: Sequence[int]) -> "Updates":
        """Those of some clients, in the same order."""
        return replace(
            self,
            members=tuple(self.members[place] for place in places),
            sources=tuple(self.sources[place] for place in places),
            weights=tuple(self.weights[place] for place in places),
        )
