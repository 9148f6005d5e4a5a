"""Aggregation of adapters, tensor by tensor over memory-mapped files.

Memory does not grow with the number of clients: the mean holds one slice of one client's tensor
beside the accumulator, and the drift holds a slice that is the narrower the more clients there are.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from pubswap_protocol.messages import Drift
from pubswap_protocol.wire import Tensors

SLICE = 1 << 20


class Aggregator(Protocol):
    """Makes a round's global adapter of the clients'."""

    def aggregate(self, files: Sequence[Tensors], weights: Sequence[float]) -> Iterator[bytes]:
        """The canonical file's bytes, in order. `files` come in a fixed order, that of the
        clients' names, for the sum of floats depends on it; `weights` need not sum to 1.
        """


class FedIT:
    """B = mean of the clients' B, A = mean of their A, separately (paper, section 3.3).

    The sum is taken in float64 and rounded once.
    """

    def aggregate(self, files: Sequence[Tensors], weights: Sequence[float]) -> Iterator[bytes]:
        """The weighted mean; see `Aggregator`."""
        layout, total = files[0].layout, math.fsum(weights)
        yield layout.header
        for name in layout.specs:
            tensors = [file.tensor(name).reshape(-1) for file in files]
            for begin in range(0, tensors[0].size, SLICE):
                mean = np.zeros(min(SLICE, tensors[0].size - begin), dtype=np.float64)
                for tensor, weight in zip(tensors, weights, strict=True):
                    mean += (weight / total) * tensor[begin : begin + SLICE].astype(np.float64)
                yield mean.astype(np.float32).tobytes()


def drift(files: Sequence[Tensors]) -> Drift:
    """How far the clients moved apart: L2 distances over all A and B together.

    With G the Gram matrix of the adapters less their mean, |theta_n - mean|^2 = G_nn and
    |theta_n - theta_m|^2 = G_nn + G_mm - 2 G_nm.
    """
    count = len(files)
    width = max(1, SLICE // count)
    gram = np.zeros((count, count), dtype=np.float64)
    for name in files[0].layout.specs:
        tensors = [file.tensor(name).reshape(-1) for file in files]
        for begin in range(0, tensors[0].size, width):
            rows = np.stack([tensor[begin : begin + width] for tensor in tensors])
            centred = rows.astype(np.float64) - rows.mean(axis=0, dtype=np.float64)
            gram += centred @ centred.T
    norms = np.diag(gram)
    squared = np.maximum(norms[:, None] + norms[None, :] - 2 * gram, 0)
    pairs = np.sqrt(squared[np.triu_indices(count, 1)])
    return Drift(
        pairwise=float(pairs.mean()) if count > 1 else 0.0,
        from_mean=float(np.sqrt(norms).mean()),
    )
