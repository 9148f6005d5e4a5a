"""Inner products between clients' adapters, which give all norms and distances.

With G_nm = <theta_n - c, theta_m - c> for any centre c,

    |theta_n - c|^2       = G_nn
    |theta_n - theta_m|^2 = G_nn + G_mm - 2 G_nm
    |theta_n - mean|^2    = G_nn - 2 mean_m G_nm + mean_lm G_lm
"""

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.draws import rng_for
from pubswap_protocol.messages import Drift
from pubswap_server.aggregation.updates import Slice, Updates

Matrix = NDArray[np.float64]

FEW = 8
MAX_DRIFT_CLIENTS = 16


def sampled(clients: int, seed: int, round_: int) -> Sequence[int]:
    """The clients on which drift is measured: all, or a sample drawn for the round.

    All pairs of many clients would cost more than the rest of the aggregation.
    """
    if clients <= MAX_DRIFT_CLIENTS:
        return range(clients)
    drawn = rng_for(seed, "drift", round_).choice(clients, MAX_DRIFT_CLIENTS, replace=False)
    return sorted(drawn.tolist())


class GramSum:
    """G (N, N) of all clients or of some, in their order, around the round's global adapter."""

    def __init__(self, updates: Updates, chosen: Sequence[int] | None = None) -> None:
        self._updates = updates
        self._chosen = range(len(updates.sources)) if chosen is None else chosen
        self.members = [updates.members[n] for n in self._chosen]
        clients = len(self.members)
        self.matrix: Matrix = np.zeros((clients, clients))
        self._centred = np.empty((clients, updates.widest))

    @property
    def norms(self) -> list[float]:
        """|theta_n - theta_round| of each."""
        return [float(norm) for norm in np.sqrt(np.diag(self.matrix))]

    def slices(self) -> Iterator[Slice]:
        """The updates' slices, whose products are added to G as they pass."""
        for each in self._updates.slices():
            if each.rows:
                self._add(each)
            yield each

    def _add(self, each: Slice) -> None:
        centred = self._centred[:, : each.previous.size]
        for out, client in zip(centred, self._chosen, strict=True):
            np.copyto(out, each.rows[client])
        centred -= each.previous
        if len(centred) > FEW:
            self.matrix += centred @ centred.T
            return
        # A matrix product suits larger matrices: row by row is up to three times faster here.
        for products, row in zip(self.matrix, centred, strict=True):
            products += centred @ row


def compared(
    updates: Updates, *, first: bool, sample: Sequence[int] | None = None
) -> tuple[GramSum, Iterator[Slice]]:
    """G of all members or of a `sample`, and the updates' slices.

    Unless it is needed `first`, G is complete when the slices have passed: no file is read twice.
    """
    if not first:
        passing = GramSum(updates, sample)
        return passing, passing.slices()
    total = GramSum(updates if sample is None else updates.only(sample))
    deque(total.slices(), maxlen=0)
    return total, updates.slices()


def squared_distances(gram: Matrix) -> Matrix:
    """|theta_n - theta_m|^2 (N, N)."""
    squares = np.diag(gram)
    return np.asarray(np.maximum(squares[:, None] + squares[None, :] - 2 * gram, 0))


def drift_of(gram: Matrix) -> Drift:
    """Mean distance between pairs of clients, and from their unweighted mean."""
    count = len(gram)
    pairs = np.sqrt(squared_distances(gram)[np.triu_indices(count, 1)])
    from_mean = np.diag(gram) - 2 * gram.mean(axis=1) + gram.mean()
    pairwise = float(pairs.mean()) if count > 1 else 0.0
    return Drift(pairwise=pairwise, from_mean=float(np.sqrt(np.maximum(from_mean, 0)).mean()))
