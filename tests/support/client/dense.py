"""Aggregation in plain numpy on whole float64 vectors: the reference for the streaming rules.

Written from the papers' formulas, sharing no code with the server.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.tensors.adapter import Adapter

Vector = NDArray[np.float64]


def flat(adapter: Adapter) -> Vector:
    """All numbers of an adapter, tensors in the order of their names."""
    return np.concatenate([adapter[name].astype(np.float64).ravel() for name in sorted(adapter)])


def weighted_mean(vectors: Sequence[Vector], weights: Sequence[float]) -> Vector:
    """sum w_n v_n / sum w_n."""
    return np.average(np.array(vectors), axis=0, weights=weights)


def trimmed_mean(vectors: Sequence[Vector], dropped: int) -> Vector:
    """The mean of each number without its `dropped` smallest and largest values."""
    columns = np.array(vectors).T
    return np.array(
        [np.mean(sorted(column)[dropped : len(column) - dropped]) for column in columns]
    )


def krum_order(vectors: Sequence[Vector], bad: int) -> list[int]:
    """The clients from the lowest Krum score to the highest."""
    scores = []
    for n, vector in enumerate(vectors):
        others = [other for m, other in enumerate(vectors) if m != n]
        distances = sorted(float(np.sum((vector - other) ** 2)) for other in others)
        scores.append((sum(distances[: len(vectors) - bad - 2]), n))
    return [n for _, n in sorted(scores)]


def clip(vectors: Sequence[Vector], start: Vector, factor: float) -> list[Vector]:
    """Each vector pulled towards `start` until it is at most factor x the median distance away."""
    distances = [float(np.linalg.norm(vector - start)) for vector in vectors]
    bound = factor * float(np.median(distances))
    return [
        vector if distance <= bound else start + (vector - start) / distance * bound
        for vector, distance in zip(vectors, distances, strict=True)
    ]


@dataclass
class ServerOptimizer:
    """FedAvgM and FedAdam as loops over rounds."""

    name: str
    rate: float
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    m: Vector | float = 0.0
    v: Vector | float = field(init=False)

    def __post_init__(self) -> None:
        self.v = self.tau**2

    def moved(self, theta: Vector, mean: Vector) -> Vector:
        """The next theta."""
        delta = mean - theta
        if self.name == "momentum":
            self.m = self.beta1 * self.m + delta
            return theta + self.rate * self.m
        self.m = self.beta1 * self.m + (1 - self.beta1) * delta
        squared = delta**2
        self.v = self.beta2 * self.v + (1 - self.beta2) * squared
        return theta + self.rate * self.m / (self.v**0.5 + self.tau)


def closest(matrix: NDArray[np.float64], rank: int) -> NDArray[np.float64]:
    """The closest matrix of a rank."""
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    return np.asarray((u[:, :rank] * s[:rank]) @ vt[:rank])


def products(adapter: Adapter) -> dict[str, NDArray[np.float64]]:
    """B A of each module, by the name of its A."""
    return {
        a: adapter[a.replace("lora_A", "lora_B")].astype(np.float64) @ adapter[a]
        for a in adapter
        if "lora_A" in a
    }
