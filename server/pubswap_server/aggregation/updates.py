"""What goes into a round's aggregation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pubswap_protocol.tensors.adapter import AdapterLayout, AdapterSource
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


SLICE = 1 << 14  # numbers of one client at a time
STACK = 1 << 19  # numbers of all clients at a time, unless a slice became too narrow by it:
NARROWEST = 1 << 12  # a pass of many clients would be calls and little else


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows first .. last - 1 of a tensor."""

    name: str
    first: int
    last: int
    numbers: int


def width_for(clients: int) -> int:
    """How many numbers of each client fit in a slice."""
    return max(NARROWEST, min(SLICE, STACK // clients))


def slices(layout: AdapterLayout, width: int) -> Iterator[Slice]:
    """All rows in the order of the canonical file, about `width` numbers each: a row at least."""
    for name, spec in layout.specs.items():
        rows, columns = spec.shape
        step = max(1, width // columns)
        for first in range(0, rows, step):
            last = min(first + step, rows)
            yield Slice(name, first, last, (last - first) * columns)


def widest(layout: AdapterLayout, width: int) -> int:
    """The numbers of the largest slice."""
    return max(
        min(rows, max(1, width // columns)) * columns for rows, columns in layout.tensors.values()
    )
