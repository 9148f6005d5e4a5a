"""Coordinate-wise robust rules: each number by itself, whoever sent it (Yin et al., 2018)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.settings import AggregationSettings
from pubswap_protocol.tensors.adapter import Array
from pubswap_server.aggregation.gram import Gram

Row = NDArray[np.float64]


class Aggregator(Protocol):
    """How the clients' numbers become one, after some clients may have been left out."""

    @property
    def chooses(self) -> bool:
        """Whether clients are left out by their distances, so that a pass for those is needed."""
        ...

    def choose(self, gram: Gram) -> list[int]:
        """The places of the clients that count, ascending."""
        ...

    def combine(self, rows: Sequence[Array], shares: Sequence[float], out: Row) -> None:
        """Put one slice (S,) of the clients' (S,) each, whose weights sum to 1, into `out`."""
        ...


class TrimmedMean:
    """The mean of what is left when the k smallest and the k largest of N numbers are dropped."""

    chooses = False

    def __init__(self, dropped: int) -> None:
        """Drop k = `dropped` at either end; 2 k < N."""
        self.dropped = dropped

    def choose(self, gram: Gram) -> list[int]:
        """Everybody."""
        return list(range(len(gram.matrix)))

    def combine(self, rows: Sequence[Array], shares: Sequence[float], out: Row) -> None:
        """The trimmed mean; the shares are not looked at."""
        _middle(rows, self.dropped, out)


class Median:
    """The middle number, or the mean of the two middle ones."""

    chooses = False

    def choose(self, gram: Gram) -> list[int]:
        """Everybody."""
        return list(range(len(gram.matrix)))

    def combine(self, rows: Sequence[Array], shares: Sequence[float], out: Row) -> None:
        """The median; the shares are not looked at."""
        _middle(rows, (len(rows) - 1) // 2, out)


def _middle(rows: Sequence[Array], dropped: int, out: Row) -> None:
    """The mean (S,) of each column's middle N - 2 `dropped` numbers."""
    # Numbers of a column next to each other are sorted several times faster.
    columns = np.stack(rows, axis=1)
    columns.sort(axis=1)
    columns[:, dropped : len(rows) - dropped].mean(axis=1, dtype=np.float64, out=out)


class FedIT:
    """B = sum_n w_n B_n and A = sum_n w_n A_n, separately (paper, section 3.3).

    The sum is taken in float64 and rounded once.
    """

    chooses = False

    def __init__(self) -> None:
        self._term: Row = np.empty(0)

    def choose(self, gram: Gram) -> list[int]:
        """Everybody."""
        return list(range(len(gram.matrix)))

    def combine(self, rows: Sequence[Array], shares: Sequence[float], out: Row) -> None:
        """The weighted mean."""
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

    chooses = True

    def __init__(self, bad: int, kept: int | None) -> None:
        """Stand f = `bad` clients, and average m = `kept`, or N - f if that is None or fewer."""
        super().__init__()
        self.bad = bad
        self.kept = kept

    def choose(self, gram: Gram) -> list[int]:
        """The m clients of the lowest scores; of equal ones, those that come first by name."""
        distances = gram.squared_distances()
        count = len(distances)
        np.fill_diagonal(distances, np.inf)
        closest = np.sort(distances, axis=1)[:, : count - self.bad - 2]
        order = np.argsort(closest.sum(axis=1), kind="stable")
        most = count - self.bad
        kept = most if self.kept is None else min(self.kept, most)
        return sorted(int(place) for place in order[:kept])


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
        return Median(), []
    if name == "trimmed_mean":
        dropped = settings.dropped(updates)
        return (TrimmedMean(dropped), []) if dropped else (Median(), [_instead(settings, updates)])
    if name == "multi_krum":
        if updates < 2 * settings.krum_f + 3:
            return Median(), [_instead(settings, updates)]
        return MultiKrum(settings.krum_f, settings.krum_m), []
    return FedIT(), []


def _instead(settings: AggregationSettings, updates: int) -> Note:
    details = {"rule": settings.rule, "used": "median", "updates": updates}
    return Note("aggregation fell back", details)
