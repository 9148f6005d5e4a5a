"""Norm clipping: no client's update is much longer than the others'."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pubswap_protocol.adapter import AdapterLayout, AdapterSource, Array
from pubswap_server.aggregation.updates import Updates


def scales(norms: Sequence[float], factor: float) -> list[float]:
    """min(1, bound / |theta_n - theta_round|), with bound = `factor` times the median norm."""
    bound = factor * statistics.median(norms)
    return [bound / norm if norm > bound else 1.0 for norm in norms]


def clipped(updates: Updates, by: list[float]) -> Updates:
    """The updates with theta_round + s_n (theta_n - theta_round) in place of theta_n."""
    sources = tuple(
        source if scale == 1.0 else Clipped(source, updates.previous, scale)
        for source, scale in zip(updates.sources, by, strict=True)
    )
    return replace(updates, sources=sources)


@dataclass(frozen=True, slots=True)
class Clipped:
    """An adapter whose distance from another one is scaled."""

    source: AdapterSource
    start: AdapterSource
    scale: float

    @property
    def layout(self) -> AdapterLayout:
        """The adapter's."""
        return self.source.layout

    def tensor(self, name: str) -> Array:
        """One whole tensor."""
        return self.rows(name, 0, self.layout.tensors[name][0])

    def rows(self, name: str, first: int, last: int) -> Array:
        """Rows first .. last - 1 of a tensor."""
        start = self.start.rows(name, first, last).astype(np.float64)
        moved = self.source.rows(name, first, last) - start
        return (start + self.scale * moved).astype(np.float32)
