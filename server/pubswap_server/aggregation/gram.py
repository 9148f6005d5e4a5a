"""Inner products between clients' adapters, from which all norms and distances follow.

With G_nm = <theta_n - c, theta_m - c> for any centre c,

    |theta_n - c|^2       = G_nn
    |theta_n - theta_m|^2 = G_nn + G_mm - 2 G_nm
    |theta_n - mean|^2    = G_nn - 2 mean_m G_nm + mean_lm G_lm
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.bounds import MAX_MEASURED
from pubswap_protocol.draws import rng_for
from pubswap_protocol.messages import Drift
from pubswap_protocol.tensors.adapter import AdapterSource, Array
from pubswap_server.aggregation.updates import DerivedSource, Updates, slices, widest, width_for

Matrix = NDArray[np.float64]

FEW = 8
MOST_IN_DRIFT = 64


@dataclass(frozen=True, slots=True)
class Gram:
    """G (N, N), in the order of the clients."""

    matrix: Matrix

    def norms(self) -> Matrix:
        """|theta_n - c| of each client (N,)."""
        return np.asarray(np.sqrt(np.diag(self.matrix)))

    def squared_distances(self) -> Matrix:
        """|theta_n - theta_m|^2 (N, N)."""
        squares = np.diag(self.matrix)
        return np.asarray(np.maximum(squares[:, None] + squares[None, :] - 2 * self.matrix, 0))

    def scaled(self, scales: Sequence[float]) -> "Gram":
        """G once each theta_n - c is scaled."""
        return Gram(self.matrix * np.outer(scales, scales))

    def drift(self) -> Drift | None:
        """Mean distance between pairs of clients, and from their unweighted mean.

        None if that is no number, or one that no run has: an update was not what was checked.
        """
        count = len(self.matrix)
        pairs = np.sqrt(self.squared_distances()[np.triu_indices(count, 1)])
        from_mean = np.diag(self.matrix) - 2 * self.matrix.mean(axis=1) + self.matrix.mean()
        pairwise = float(pairs.mean()) if count > 1 else 0.0
        from_mean = float(np.sqrt(np.maximum(from_mean, 0)).mean())
        if not (pairwise <= MAX_MEASURED and from_mean <= MAX_MEASURED):
            return None
        return Drift(pairwise=pairwise, from_mean=from_mean)


def sampled(clients: int, seed: int, round_: int) -> Sequence[int]:
    """The clients whose products give the drift: all, or some drawn for the round.

    All pairs of many clients would cost more than all the rest of an aggregation.
    """
    if clients <= MOST_IN_DRIFT:
        return range(clients)
    drawn = rng_for(seed, "drift", round_).choice(clients, MOST_IN_DRIFT, replace=False)
    return sorted(drawn.tolist())


class GramSum:
    """G, summed up slice by slice, of all clients or of some."""

    def __init__(self, updates: Updates, chosen: Sequence[int] | None = None) -> None:
        self._chosen = range(len(updates.sources)) if chosen is None else chosen
        clients = len(self._chosen)
        width = widest(updates.layout, width_for(len(updates.sources)))
        self._matrix = np.zeros((clients, clients))
        self._centred = np.empty((clients, width))

    def add(self, rows: Sequence[Array], centre: Array) -> None:
        """A slice (S,) of each client, and of c, in float64."""
        centred = self._centred[:, : centre.size]
        for out, client in zip(centred, self._chosen, strict=True):
            np.subtract(rows[client], centre, out=out, dtype=np.float64)
        if len(centred) > FEW:
            self._matrix += centred @ centred.T
            return
        # A matrix product is made for larger matrices: row by row is up to three times faster.
        for products, row in zip(self._matrix, centred, strict=True):
            products += centred @ row

    def total(self) -> Gram:
        """G of all slices added."""
        return Gram(self._matrix)


def norms_of(updates: Updates) -> Matrix:
    """|theta_n - theta_round| of each client (N,): one pass over all files."""
    squares = np.zeros(len(updates.sources))
    for slice_ in slices(updates.layout, width_for(len(updates.sources))):
        centre = slice_.of(updates.origin)
        for number, source in enumerate(updates.sources):
            moved = (slice_.of(source) - centre).astype(np.float64)
            squares[number] += moved @ moved
    return np.asarray(np.sqrt(squares))


def gram_of(updates: Updates, chosen: Sequence[int] | None = None) -> Gram:
    """G around the round's global adapter: one pass over all files, or over some."""
    if chosen is not None:
        updates = updates.only(chosen)
    total = GramSum(updates)
    for slice_ in slices(updates.layout, width_for(len(updates.sources))):
        rows = [slice_.of(source) for source in updates.sources]
        total.add(rows, slice_.of(updates.origin))
    return total.total()


def scales(norms: Sequence[float], factor: float) -> list[float]:
    """min(1, bound / |theta_n - theta_round|), with bound = `factor` times the median norm."""
    bound = factor * statistics.median(norms)
    return [bound / norm if norm > bound else 1.0 for norm in norms]


def clipped(updates: Updates, by: list[float]) -> Updates:
    """The updates with theta_round + s_n (theta_n - theta_round) in place of theta_n."""
    sources = tuple(
        source if scale == 1.0 else Clipped(source, updates.origin, scale)
        for source, scale in zip(updates.sources, by, strict=True)
    )
    return replace(updates, sources=sources)


@dataclass(frozen=True)
class Clipped(DerivedSource):
    """An adapter whose distance from another one is scaled."""

    source: AdapterSource
    start: AdapterSource
    scale: float

    def rows(self, name: str, first: int, last: int) -> Array:
        start = self.start.rows(name, first, last).astype(np.float64)
        moved = self.source.rows(name, first, last) - start
        return (start + self.scale * moved).astype(np.float32)
