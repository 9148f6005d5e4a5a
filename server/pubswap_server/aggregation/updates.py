"""The clients' updates in a round, and their slices."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pubswap_protocol.methods.weights import Uniform, Weights
from pubswap_protocol.tensors.adapter import AdapterLayout, AdapterSource, Array

UNIFORM = Uniform()

SLICE = 1 << 14  # numbers of one client at a time
STACK = 1 << 19  # numbers of all clients at a time, but a slice has at least
NARROWEST = 1 << 12  # so many, or a pass over many clients would be mostly calls


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows first .. last - 1 of a tensor: numbers (S,) of each client, and of the round's adapter.

    `rows` is empty for a tensor that clients do not send.
    """

    name: str
    first: int
    last: int
    rows: list[Array]
    previous: Array


@dataclass(frozen=True, slots=True)
class Updates:
    """The clients' adapters theta_n, one each, in the order of their names.

    Sums of floats depend on their order, so this order does not depend on that of arrival.
    `weights` need not sum to 1; `weighing` bounds their shares of the mean. `previous` is the
    round's global adapter, and may have tensors that clients do not send. `ranks` are the ranks
    that the clients have trained; if empty, all have trained the adapter's own.
    """

    members: tuple[str, ...]
    sources: tuple[AdapterSource, ...]
    weights: tuple[float, ...]
    previous: AdapterSource
    weighing: Weights = UNIFORM
    ranks: tuple[int, ...] = ()

    @property
    def layout(self) -> AdapterLayout:
        return self.sources[0].layout

    @property
    def shares(self) -> tuple[float, ...]:
        return shares_of(self.weights, self.weighing.largest_share(len(self.weights)))

    @property
    def widest(self) -> int:
        """The numbers of the largest slice of what clients send."""
        width = width_for(len(self.sources))
        return max(
            min(rows, max(1, width // columns)) * columns
            for rows, columns in self.layout.tensors.values()
        )

    def slices(self) -> Iterator[Slice]:
        """One pass over all files."""
        return slices_of(self.previous, self.sources)

    def only(self, chosen: Sequence[int]) -> "Updates":
        return replace(
            self,
            members=tuple(self.members[n] for n in chosen),
            sources=tuple(self.sources[n] for n in chosen),
            weights=tuple(self.weights[n] for n in chosen),
            ranks=tuple(self.ranks[n] for n in chosen if self.ranks),
        )


def shares_of(weights: Sequence[float], largest: float = 1.0) -> tuple[float, ...]:
    """min(largest, c w_n) with the c for which they sum to 1; all equal if there is none.

    A client above the bound gets the bound, and the others share the rest by their weights. With
    `largest` = 0.5, two clients are equal whatever their weights.
    """
    count = len(weights)
    if count * largest <= 1:
        return (1 / count,) * count
    capped: set[int] = set()
    while True:
        remaining = 1 - largest * len(capped)
        total = math.fsum(w for n, w in enumerate(weights) if n not in capped)
        shares = tuple(
            largest if n in capped else remaining * w / total for n, w in enumerate(weights)
        )
        over = {n for n, share in enumerate(shares) if share > largest}
        if not over:
            return shares
        capped |= over


def width_for(clients: int) -> int:
    """The numbers of each client in a slice."""
    return max(NARROWEST, min(SLICE, STACK // clients))


def slices_of(previous: AdapterSource, sources: Sequence[AdapterSource] = ()) -> Iterator[Slice]:
    """All rows in the canonical file's order, at least one row a slice."""
    width = width_for(max(1, len(sources)))
    sent = sources[0].layout.tensors if sources else ()
    for name, spec in previous.layout.specs.items():
        rows, columns = spec.shape
        step = max(1, width // columns)
        for first in range(0, rows, step):
            last = min(first + step, rows)
            senders = sources if name in sent else ()
            own, *theirs = (
                source.rows(name, first, last).reshape(-1) for source in (previous, *senders)
            )
            yield Slice(name, first, last, theirs, own)
