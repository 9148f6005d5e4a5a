"""A rule applied to updates, slice by slice."""

from collections.abc import Iterator

import numpy as np

from pubswap_protocol.tensors.adapter import Array
from pubswap_server.aggregation.gram import GramSum
from pubswap_server.aggregation.rules import Aggregator, Row
from pubswap_server.aggregation.updates import Slice, Updates, slices, widest, width_for


class Means:
    """What the rule makes of the updates. A pass reads each file once."""

    def __init__(self, updates: Updates, rule: Aggregator, gram: GramSum | None = None) -> None:
        """`gram` is given the slices as they come by."""
        self.updates = updates
        self.rule = rule
        self._gram = gram
        self._width = width_for(len(updates.sources))

    def adapter(self) -> Iterator[bytes]:
        """The canonical file of the result; what clients do not send is as it was before."""
        layout, sent = self.updates.previous.layout, self.updates.layout.tensors
        combine = self._combining()
        yield layout.header
        for slice_ in slices(layout, self._width):
            if slice_.name in sent:
                yield combine(slice_)[1].tobytes()
            else:
                yield self.before(slice_).tobytes()

    def moves(self) -> Iterator[tuple[Slice, Row]]:
        """Result - previous for each slice of what clients send; good until the next one."""
        combine = self._combining()
        for slice_ in slices(self.updates.layout, self._width):
            exact = combine(slice_)[0]
            yield slice_, np.subtract(exact, self.before(slice_), out=exact)

    def before(self, slice_: Slice) -> Array:
        """The adapter that the round began from."""
        rows = self.updates.previous.rows(slice_.name, slice_.first, slice_.last)
        return rows.reshape(-1)

    def _combining(self) -> "_Combining":
        return _Combining(self.updates, self.rule, self._gram)


class _Combining:
    """One pass: its buffers are used again for each slice."""

    def __init__(self, updates: Updates, rule: Aggregator, gram: GramSum | None) -> None:
        self._sources = updates.sources
        self._previous = updates.previous
        self._shares = updates.shares
        self._rule = rule
        self._gram = gram
        width = widest(updates.layout, width_for(len(updates.sources)))
        self._exact: Row = np.empty(width)
        self._rounded = np.empty(width, dtype=np.float32)

    def __call__(self, slice_: Slice) -> tuple[Row, Array]:
        """The result, and the result rounded, in the buffers."""
        place = (slice_.name, slice_.first, slice_.last)
        rows = [source.rows(*place).reshape(-1) for source in self._sources]
        if self._gram is not None:
            self._gram.add(rows, self._previous.rows(*place).reshape(-1))
        exact, rounded = self._exact[: slice_.numbers], self._rounded[: slice_.numbers]
        self._rule.combine(rows, self._shares, exact)
        np.copyto(rounded, exact, casting="same_kind")
        return exact, rounded
