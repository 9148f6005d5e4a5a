"""A rule applied to updates, slice by slice."""

from collections.abc import Iterator

import numpy as np

from pubswap_server.aggregation.gram import GramSum
from pubswap_server.aggregation.rules import Aggregator, Row
from pubswap_server.aggregation.updates import Slice, Updates, slices, widest, width_for


class Means:
    """The rule's result, in passes that read each file once and use the same buffers again."""

    def __init__(self, updates: Updates, rule: Aggregator, gram: GramSum | None = None) -> None:
        """`gram` is given the slices as they come by."""
        self.updates = updates
        self._rule, self._shares = rule, updates.shares
        self._gram = gram
        self._width = width_for(len(updates.sources))
        self._exact: Row = np.empty(widest(updates.layout, self._width))
        self._rounded = np.empty(self._exact.size, dtype=np.float32)

    def adapter(self) -> Iterator[bytes]:
        """The canonical file of the result; what clients do not send is as it was before."""
        layout, sent = self.updates.previous.layout, self.updates.layout.tensors
        yield layout.header
        for slice_ in slices(layout, self._width):
            if slice_.name in sent:
                rounded = self._rounded[: slice_.numbers]
                np.copyto(rounded, self._combine(slice_), casting="same_kind")
                yield rounded.tobytes()
            else:
                yield slice_.of(self.updates.previous).tobytes()

    def moves(self) -> Iterator[tuple[Slice, Row]]:
        """Result - previous for each slice of what clients send; good until the next one."""
        for slice_ in slices(self.updates.layout, self._width):
            exact = self._combine(slice_)
            yield slice_, np.subtract(exact, slice_.of(self.updates.previous), out=exact)

    def _combine(self, slice_: Slice) -> Row:
        """The exact result, in the buffer."""
        rows = [slice_.of(source) for source in self.updates.sources]
        if self._gram is not None:
            self._gram.add(rows, slice_.of(self.updates.previous))
        exact = self._exact[: slice_.numbers]
        self._rule.combine(rows, self._shares, exact)
        return exact
