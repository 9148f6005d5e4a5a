"""The updates that count in a round: clipped to a bound on their norms, and those selected."""

import math
import statistics
from dataclasses import dataclass, replace

import numpy as np

from pubswap_protocol.methods.rules import Rule
from pubswap_protocol.tensors.adapter import AdapterLayout, AdapterSource, Array
from pubswap_server.aggregation.gram import GramSum, squared_distances
from pubswap_server.aggregation.log_lines import LogLine
from pubswap_server.aggregation.updates import Updates


def counted(
    updates: Updates, pairs: GramSum, rule: Rule, clip_norm: float | None
) -> tuple[Updates, list[LogLine]]:
    """The updates that the rule combines, and lines on members clipped, left out or bounded.

    If the rule selects, all members are pairs.
    """
    members, log, scales = updates.members, list[LogLine](), [1.0] * len(updates.members)
    if clip_norm is not None:
        whole = len(pairs.members) == len(members)
        norms = pairs.norms if whole else _norms(updates)
        bound = clip_norm * statistics.median(norms)
        scales = [min(1.0, bound / norm) if norm > bound else 1.0 for norm in norms]
        sources = (
            _Scaled(source, updates.previous, scale) if scale < 1 else source
            for source, scale in zip(updates.sources, scales, strict=True)
        )
        updates = replace(updates, sources=tuple(sources))
        log += [
            LogLine("update clipped", {"member": member, "norm": norm, "scale": scale})
            for member, norm, scale in zip(members, norms, scales, strict=True)
            if scale < 1
        ]
    if rule.selects:
        selected = rule.select(squared_distances(pairs.matrix * np.outer(scales, scales)))
        updates = updates.only(selected)
        excluded = (member for n, member in enumerate(members) if n not in selected)
        log += [LogLine("update excluded", {"member": member}) for member in excluded]
    return updates, log + (_bounded_weights(updates) if rule.weighs else [])


def _norms(updates: Updates) -> list[float]:
    """|theta_n - theta_round| of each client: one pass over all files."""
    squares = np.zeros(len(updates.sources))
    for each in updates.slices():
        for number, row in enumerate(each.rows):
            moved = (row - each.previous).astype(np.float64)
            squares[number] += moved @ moved
    return [float(norm) for norm in np.sqrt(squares)]


@dataclass(frozen=True)
class _Scaled(AdapterSource):
    """theta_round + s_n (theta_n - theta_round) in place of theta_n."""

    source: AdapterSource
    start: AdapterSource
    scale: float

    @property
    def layout(self) -> AdapterLayout:  # type: ignore[override]
        return self.source.layout

    def rows(self, name: str, first: int, last: int) -> Array:
        start = self.start.rows(name, first, last).astype(np.float64)
        moved = self.source.rows(name, first, last) - start
        return (start + self.scale * moved).astype(np.float32)


def _bounded_weights(updates: Updates) -> list[LogLine]:
    """The members whose share of the mean is smaller than their weight asks for."""
    total = math.fsum(updates.weights)
    shares = zip(updates.members, updates.weights, updates.shares, strict=True)
    return [
        LogLine("weight bounded", {"member": member, "asked": weight / total, "share": share})
        for member, weight, share in shares
        if share < weight / total * (1 - 1e-9)  # less is a rounding error
    ]
