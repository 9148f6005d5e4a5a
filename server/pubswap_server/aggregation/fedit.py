"""FedIT: the mean. FFA-LoRA and FedEx-LoRA take the same mean of what is sent."""

from collections.abc import Sequence

import numpy as np

from pubswap_protocol.adapter import Array
from pubswap_server.aggregation.gram import Gram
from pubswap_server.aggregation.rule import Row


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
