"""Inner products between clients' adapters, which give all norms and distances.

With G_nm = <theta_n - c, theta_m - c> for any centre c,

    |theta_n - c|^2       = G_nn
    |theta_n - theta_m|^2 = G_nn + G_mm - 2 G_nm
    |theta_n - mean|^2    = G_nn - 2 mean_m G_nm + mean_lm G_lm
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.draws import rng_for
from pubswap_protocol.messages import Drift
from pubswap_protocol.tensors.adapter import AdapterSource, Array
from pubswap_server.aggregation.updates import DerivedSource, Updates, slices, widest, width_for

Matrix = NDArray[np.float64]

FEW = 8
MAX_DRIFT_CLIENTS = 16


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


def sampled(clients: int, seed: int, round_: int) -> Sequence[int]:
    """The clients on which drift is measured: all, or a sample drawn for the round.

    All pairs of many clients would cost more than the rest of the aggregation.
    """
    if clients <= MAX_DRIFT_CLIENTS:
        return range(clients)
    drawn = rng_for(seed, "drift", round_).choice(clients, MAX_DRIFT_CLIENTS, replace=False)
    return sorted(drawn.tolist())


class GramSum:
    """G (N, N) of all clients or of some, in their order, summed slice by slice."""

    def __init__(self, updates: Updates, chosen: Sequence[int] | None = None) -> None:
        self._chosen = range(len(updates.sources)) if chosen is None else chosen
        clients = len(self._chosen)
        width = widest(updates.layout, width_for(len(updates.sources)))
        self.matrix: Matrix = np.zeros((clients, clients))
        self._centred = np.empty((clients, width))

    def add(self, rows: Sequence[Array], centre: Array) -> None:
        """Add a slice (S,) of each client, and of c, in float64."""
        centred = self._centred[:, : centre.size]
        for out, client in zip(centred, self._chosen, strict=True):
            np.copyto(out, rows[client])
        centred -= centre
        if len(centred) > FEW:
            self.matrix += centred @ centred.T
            return
        # A matrix product suits larger matrices: row by row is up to three times faster here.
        for products, row in zip(self.matrix, centred, strict=True):
            products += centred @ row


def norms_of(updates: Updates) -> Matrix:
    """|theta_n - theta_round| of each client (N,): one pass over all files."""
    squares = np.zeros(len(updates.sources))
    for slice_ in slices(updates.layout, width_for(len(updates.sources))):
        centre = slice_.of(updates.previous)
        for number, source in enumerate(updates.sources):
            moved = (slice_.of(source) - centre).astype(np.float64)
            squares[number] += moved @ moved
    return np.asarray(np.sqrt(squares))


def gram_of(updates: Updates, chosen: Sequence[int] | None = None) -> Matrix:
    """G around the round's global adapter: one pass over all files, or over some."""
    if chosen is not None:
        updates = updates.only(chosen)
    total = GramSum(updates)
    for slice_ in slices(updates.layout, width_for(len(updates.sources))):
        rows = [slice_.of(source) for source in updates.sources]
        total.add(rows, slice_.of(updates.previous))
    return total.matrix


@dataclass(frozen=True)
class Clipped(DerivedSource):
    """theta_round + s_n (theta_n - theta_round) in place of theta_n."""

    source: AdapterSource
    start: AdapterSource
    scale: float

    def rows(self, name: str, first: int, last: int) -> Array:
        start = self.start.rows(name, first, last).astype(np.float64)
        moved = self.source.rows(name, first, last) - start
        return (start + self.scale * moved).astype(np.float32)
