"""The rules of aggregation: how the clients' numbers become one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.settings import AggregationSettings
from pubswap_protocol.tensors.adapter import Array
from pubswap_server.aggregation.gram import Gram

Row = NDArray[np.float64]


class Aggregator:
    """A rule; `selects` if it leaves clients out by their distances, which takes a pass."""

    selects = False

    def select(self, gram: Gram) -> list[int]:
        """The numbers of the clients that count, ascending; all by default."""
        return list(range(len(gram.matrix)))

    def combine(self, rows: Sequence[Array], shares: Sequence[float], out: Row) -> None:
        """Put one slice (S,) of the clients' (S,) each, whose weights sum to 1, into `out`."""
        raise NotImplementedError


class TrimmedMean(Aggregator):
    """The mean of what is left when the k smallest and the k largest of N numbers are dropped.

    Each number by itself, whoever sent it and with which share (Yin et al., 2018). Without k it is
    the median: the middle number, or the mean of the two middle ones.
    """

    def __init__(self, dropped: int | None = None) -> None:
        """Drop k = `dropped` at either end; 2 k < N."""
        self.dropped = dropped

    def combine(self, rows: Sequence[Array], shares: Sequence[float], out: Row) -> None:
        dropped = (len(rows) - 1) // 2 if self.dropped is None else self.dropped
        # Numbers of a column next to each other are sorted several times faster.
        columns = np.stack(rows, axis=1)
        columns.sort(axis=1)
        columns[:, dropped : len(rows) - dropped].mean(axis=1, dtype=np.float64, out=out)


class FedIT(Aggregator):
    """B = sum_n w_n B_n and A = sum_n w_n A_n, separately (paper, section 3.3).

    The sum is taken in float64 and rounded once.
    """

    def __init__(self) -> None:
        self._term: Row = np.empty(0)

    def combine(self, rows: Sequence[Array], shares: Sequence[float], out: Row) -> None:
        if len(set(shares)) == 1:
            _plain_mean(rows, out)
            return
        if self._term.size < out.size:
            self._term = np.empty_like(out)
        term = self._term[: out.size]
        np.multiply(rows[0], shares[0], out=out, dtype=np.float64)
        for row, share in zip(rows[1:], shares[1:], strict=True):
            np.multiply(row, share, out=term, dtype=np.float64)
            np.add(out, term, out=out)


def _plain_mean(rows: Sequence[Array], out: Row) -> None:
    """The mean with equal weights: without a product for each number."""
    np.copyto(out, rows[0])
    for row in rows[1:]:
        np.add(out, row, out=out)
    if len(rows) & (len(rows) - 1):
        np.divide(out, len(rows), out=out)
    else:  # of a power of two the inverse is exact, and a product takes a quarter of the time
        np.multiply(out, 1 / len(rows), out=out)


class MultiKrum(FedIT):
    """The mean of the m clients of the lowest scores

        s_n = sum of |theta_n - theta_j|^2 over the N - f - 2 clients j that are closest to n

    It stands f bad clients of N >= 2 f + 3.
    """

    selects = True

    def __init__(self, bad: int, kept: int | None) -> None:
        """Stand f = `bad` clients, and average m = `kept`, or N - f if that is None or fewer."""
        super().__init__()
        self.bad = bad
        self.kept = kept

    def select(self, gram: Gram) -> list[int]:
        """The m clients of the lowest scores; of equal ones, those that come first by name."""
        distances = gram.squared_distances()
        count = len(distances)
        np.fill_diagonal(distances, np.inf)
        closest = np.sort(distances, axis=1)[:, : count - self.bad - 2]
        order = np.argsort(closest.sum(axis=1), kind="stable")
        most = count - self.bad
        kept = most if self.kept is None else min(self.kept, most)
        return sorted(order[:kept].tolist())


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the run's log."""

    kind: str
    details: dict[str, Any] = field(default_factory=dict)


def rule_for(settings: AggregationSettings, updates: int) -> tuple[Aggregator, list[Note]]:
    """The rule for so many updates, with a note if it is not the run's.

    A round may close with fewer clients than the run has. Multi-Krum then gives way to the median,
    which stands fewer than half of whoever came; a trimmed mean of too few is the median too.
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
