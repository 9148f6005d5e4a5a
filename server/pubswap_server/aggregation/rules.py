"""Aggregation rules, which combine the clients' numbers, and their passes over the updates."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.settings import AggregationSettings
from pubswap_protocol.tensors.adapter import Array
from pubswap_server.aggregation.gram import GramSum, Matrix, squared_distances
from pubswap_server.aggregation.updates import Slice, Updates, slices, widest, width_for

Row = NDArray[np.float64]


class TrimmedMean:
    """The mean of N numbers without the k smallest and the k largest (Yin et al., 2018).

    It is taken for each coordinate separately, whatever the clients' shares. Without k it is the
    median: the middle number, or the mean of the two middle ones.
    """

    def __init__(self, dropped: int | None = None) -> None:
        """Drop k = `dropped` at either end; 2 k < N."""
        self.dropped = dropped

    def combine(self, rows: Sequence[Array], shares: Sequence[float], out: Row) -> None:
        """Combine one slice (S,) of each client into `out` (S,); the shares sum to 1."""
        dropped = (len(rows) - 1) // 2 if self.dropped is None else self.dropped
        # Sorting is several times faster if a column's numbers are next to each other.
        columns = np.stack(rows, axis=1)
        columns.sort(axis=1)
        columns[:, dropped : len(rows) - dropped].mean(axis=1, dtype=np.float64, out=out)


class FedIT:
    """B = sum_n w_n B_n and A = sum_n w_n A_n, separately (paper, section 3.3).

    The sum is taken in float64 and rounded once.
    """

    def __init__(self) -> None:
        self._term: Row = np.empty(0)

    def combine(self, rows: Sequence[Array], shares: Sequence[float], out: Row) -> None:
        if len(set(shares)) == 1:  # saves a product for each number
            np.copyto(out, rows[0])
            for row in rows[1:]:
                np.add(out, row, out=out)
            if len(rows) & (len(rows) - 1):
                np.divide(out, len(rows), out=out)
            else:  # the inverse is exact, and multiplying takes a quarter of the time
                np.multiply(out, 1 / len(rows), out=out)
            return
        if self._term.size < out.size:
            self._term = np.empty_like(out)
        term = self._term[: out.size]
        np.multiply(rows[0], shares[0], out=out, dtype=np.float64)
        for row, share in zip(rows[1:], shares[1:], strict=True):
            np.multiply(row, share, out=term, dtype=np.float64)
            np.add(out, term, out=out)


class MultiKrum(FedIT):
    """The mean of the m clients with the lowest scores

        s_n = sum of |theta_n - theta_j|^2 over the N - f - 2 clients j that are closest to n

    It tolerates f bad clients of N >= 2 f + 3.
    """

    def __init__(self, bad: int, selected: int | None) -> None:
        """Tolerate f = `bad` clients, average m = `selected`, at most N - f; None means N - f."""
        super().__init__()
        self.bad = bad
        self.selected = selected

    def select(self, gram: Matrix) -> list[int]:
        """The m clients with the lowest scores; ties go to the first by name."""
        distances = squared_distances(gram)
        count = len(distances)
        np.fill_diagonal(distances, np.inf)
        closest = np.sort(distances, axis=1)[:, : count - self.bad - 2]
        order = np.argsort(closest.sum(axis=1), kind="stable")
        limit = count - self.bad
        selected = limit if self.selected is None else min(self.selected, limit)
        return sorted(order[:selected].tolist())


Aggregator = TrimmedMean | FedIT


@dataclass(frozen=True, slots=True)
class Note:
    kind: str
    details: dict[str, Any]


def rule_for(settings: AggregationSettings, updates: int) -> tuple[Aggregator, list[Note]]:
    """The rule for this many updates, with a note if it is not the run's.

    A round may close with fewer clients than the run has. Multi-Krum then gives way to the median,
    which tolerates fewer than half of those that came; a trimmed mean of too few does, too.
    """
    name = settings.rule
    if name == "median":
        return TrimmedMean(), []
    if name == "trimmed_mean" and (dropped := settings.dropped(updates)):
        return TrimmedMean(dropped), []
    if name == "multi_krum" and updates >= 2 * settings.krum_f + 3:
        return MultiKrum(settings.krum_f, settings.krum_m), []
    if name in ("trimmed_mean", "multi_krum"):
        details = {"rule": name, "used": "median", "updates": updates}
        return TrimmedMean(), [Note("aggregation fell back", details)]
    return FedIT(), []


class Means:
    """The rule's result, in passes that read each file once and reuse the same buffers."""

    def __init__(self, updates: Updates, rule: Aggregator, gram: GramSum | None = None) -> None:
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
