"""Coordinate-wise robust rules: each number by itself, whoever sent it (Yin et al., 2018)."""

from collections.abc import Sequence

import numpy as np

from pubswap_protocol.adapter import Array
from pubswap_server.aggregation.gram import Gram
from pubswap_server.aggregation.rule import Row


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
