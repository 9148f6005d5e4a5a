"""Passes of a rule over the updates."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.methods.rules import Rule
from pubswap_server.aggregation.gram import GramSum
from pubswap_server.aggregation.updates import Slice, Updates, slices, widest, width_for

Row = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Note:
    kind: str
    details: dict[str, Any]


def rule_for(rule: Rule, updates: int) -> tuple[Rule, list[Note]]:
    """The rule for this many updates, with a note if it is not the run's.

    A round may close with fewer clients than the run has.
    """
    if (used := rule.used(updates)) is rule:
        return rule, []
    details = {"rule": rule.name, "used": used.name, "updates": updates}
    return used, [Note("aggregation fell back", details)]


class Means:
    """The rule's result, in passes that read each file once and reuse the same buffers."""

    def __init__(self, updates: Updates, rule: Rule, gram: GramSum | None = None) -> None:
        """`gram` gets the slices as they are read."""
        self.updates = updates
        self._rule, self._shares = rule, updates.shares
        self._gram = gram
        self._width = width_for(len(updates.sources))
        self._exact: Row = np.empty(widest(updates.layout, self._width))
        self._rounded = np.empty(self._exact.size, dtype=np.float32)

    def adapter(self) -> Iterator[bytes]:
        """The canonical file of the result; tensors that clients do not send are unchanged."""
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
        """Result - previous for each slice of what clients send; valid until the next one."""
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
