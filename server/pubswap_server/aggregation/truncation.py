"""The exact mean of the members' products, and its best approximation at the run's rank.

With member n's factors B_n, A_n of rank r_n <= R, its weight w_n, and the round's own B, A, whose
directions from r_n on a member keeps as they are,

    M = sum_n w_n (B_n A_n + B[:, r_n:] A[r_n:])
      = [B C | w_1 B_1 | w_2 B_2 ...] [A; A_1; A_2; ...],   C_kk = sum of the w_n with r_n <= k,

is the product of two stacks of S = R + sum_n r_n columns and rows. M itself is not formed. With the
QR decompositions of the stacks, Q_b R_b and (Q_a R_a)^T, and the singular values of their core,

    R_b R_a^T = U s V^T,   M = (Q_b U) s (Q_a V)^T,

whose first R terms are the closest matrix of rank R (Eckart and Young). With so many members that
S > min(out, in), M is summed instead and decomposed directly, because the stacks would be larger.
Everything is computed in float64, one module after another, and rounded once.

The new factors are A = c V^T and B = U s / c, with c = 1 / sqrt(3), the mean norm of a row of the
initial A. So everything that training has changed is in B, as in LoRA's first steps, and Adam's
steps keep their length. The entry of largest magnitude in each row of A is positive. A direction
whose singular value is only rounding error keeps its row of the round's A, and has 0 in B.

docs/aggregation.md has the cost.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.tensors.adapter import AdapterSource, Array, modules
from pubswap_protocol.tensors.ranks import rank_of
from pubswap_server.aggregation.updates import Updates

Matrix = NDArray[np.float64]
Term = tuple[AdapterSource, Matrix]
"""An adapter, and the weight of each of its first directions: B[:, :r] diag(w) A[:r]."""

ROW_NORM = 1 / math.sqrt(3)
COLUMNS = 128  # of the stacks at a time, when M is summed
NOTHING = 2.0**-40  # relative to the largest singular value; far above float64's rounding


class Truncation:
    """The truncated mean of a round's products."""

    def __init__(self, updates: Updates) -> None:
        self._updates = updates
        self._rank = rank_of(updates.previous.layout)
        self._retained = self._all = 0.0

    @property
    def left_out(self) -> float:
        """|M - B A| / |M| over all modules written so far, in the Frobenius norm."""
        return math.sqrt(max(0.0, 1 - self._retained / self._all)) if self._all else 0.0

    def adapter(self) -> Iterator[bytes]:
        layout, ready = self._updates.previous.layout, dict[str, Array]()
        pairs = {name: pair for pair in modules(layout) for name in pair}
        yield layout.header
        for name in layout.specs:
            if name not in ready:
                a, b = pairs[name]
                ready[a], ready[b] = self._factors(a, b)
            yield ready.pop(name).tobytes()

    def _factors(self, a: str, b: str) -> tuple[Array, Array]:
        """A (R, in) and B (out, R) of a module."""
        terms, layout = self._terms(), self._updates.previous.layout
        shape = layout.tensors[b][0], layout.tensors[a][1]
        if sum(len(by) for _, by in terms) <= min(shape):
            left, values, right = decomposed(*_stacks(terms, a, b))
        else:
            step = max(1, COLUMNS // self._rank)
            some = (terms[first : first + step] for first in range(0, len(terms), step))
            left, values, right = summed(shape, (_stacks(each, a, b) for each in some))
        rank = min(self._rank, int(np.sum(values > NOTHING * values[0])))
        self._all += float(np.sum(values**2))
        self._retained += float(np.sum(values[:rank] ** 2))
        new_a = np.array(self._updates.previous.tensor(a))
        new_b = np.zeros_like(self._updates.previous.tensor(b))
        # These signs make each row's entry of largest magnitude positive.
        largest = np.abs(right[:rank]).argmax(axis=1)
        signs = np.where(right[np.arange(rank), largest] < 0, -1.0, 1.0)
        new_a[:rank] = ROW_NORM * signs[:, None] * right[:rank]
        new_b[:, :rank] = left[:, :rank] * (signs * values[:rank] / ROW_NORM)
        return new_a, new_b

    def _terms(self) -> list[Term]:
        """The terms whose sum is M."""
        updates = self._updates
        ranks = updates.ranks or (self._rank,) * len(updates.sources)
        sent, previous_shares = [], np.zeros(self._rank)  # the diagonal of C (R,)
        for source, share, rank in zip(updates.sources, updates.shares, ranks, strict=True):
            previous_shares[rank:] += share
            sent.append((source, np.full(rank, share)))
        return [(updates.previous, previous_shares), *sent]


def _stacks(terms: Sequence[Term], a: str, b: str) -> tuple[Matrix, Matrix]:
    """Factors (out, S) and (S, in) whose product is the sum of the terms."""
    b_stack = [source.tensor(b)[:, : len(by)] * by for source, by in terms]
    a_stack = [source.tensor(a)[: len(by)].astype(np.float64) for source, by in terms]
    return np.concatenate(b_stack, axis=1), np.concatenate(a_stack, axis=0)


def decomposed(b: Matrix, a: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """Left vectors (out, k), singular values (k,) and right vectors (k, in) of B A."""
    q_b, r_b = np.linalg.qr(b)
    q_a, r_a = np.linalg.qr(a.T)
    u, values, vt = np.linalg.svd(r_b @ r_a.T, full_matrices=False)
    return q_b @ u, values, vt @ q_a.T


def summed(
    shape: tuple[int, int], products: Iterable[tuple[Matrix, Matrix]]
) -> tuple[Matrix, Matrix, Matrix]:
    """Like `decomposed`, for the sum of many products, which is formed."""
    mean = np.zeros(shape)
    for b, a in products:
        mean += b @ a
    return np.linalg.svd(mean, full_matrices=False)
