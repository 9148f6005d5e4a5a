"""Adapters of a lower rank than the run's: the leading directions, which a member trains.

The run's adapter has R directions: rows of A (R, in), columns of B (out, R). A member of rank r < R
trains and sends the first r of them; its policy has the others too, frozen. So its update stands
for an adapter of rank R whose other directions are those at the start of the round.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pubswap_protocol.errors import InvalidAdapter
from pubswap_protocol.tensors.adapter import (
    Adapter,
    AdapterLayout,
    AdapterSource,
    Array,
    is_a,
    stack_layout,
)
from pubswap_protocol.tensors.safetensors_header import header_of_file


def rank_of(layout: AdapterLayout) -> int:
    """R, the same for all modules; 0 for a layout without an A."""
    return next((shape[0] for name, shape in layout.tensors.items() if is_a(name)), 0)


def at_rank(layout: AdapterLayout, rank: int) -> AdapterLayout:
    """The layout with another rank."""
    return stack_layout(layout, {name: rank for name in layout.tensors if is_a(name)})


def leading(adapter: Mapping[str, Array], rank: int) -> Adapter:
    """The first `rank` directions."""
    return {
        name: np.ascontiguousarray(factor[:rank] if is_a(name) else factor[:, :rank])
        for name, factor in adapter.items()
    }


def layout_of_update(path: Path, layout: AdapterLayout, fewest: int | None) -> AdapterLayout:
    """The run's layout at the rank of an update's file, which must be at least `fewest`.

    Without `fewest`, the rank is the run's. Checks nothing else in the file. Raises InvalidAdapter
    for a rank that the run does not accept.
    """
    if fewest is None:
        return layout
    specs, _ = header_of_file(path)
    shapes = [specs[name].shape for name in layout.tensors if is_a(name) and name in specs]
    full_rank, rank = rank_of(layout), next((shape[0] for shape in shapes if len(shape) == 2), None)
    if rank is None or rank == full_rank:
        return layout
    if not fewest <= rank <= full_rank:
        raise InvalidAdapter(
            f"Your update has rank {rank}; the run takes {fewest} "
            f"(aggregation.rule.min_rank) to {full_rank} (lora.rank)."
        )
    return at_rank(layout, rank)


class TruncatedAdapter(AdapterSource):
    """A view of the leading directions of an adapter."""

    def __init__(self, source: AdapterSource, layout: AdapterLayout) -> None:
        self.layout = layout
        self._source = source
        self._rank = rank_of(layout)

    def rows(self, name: str, first: int, last: int) -> Array:
        return self._source.rows(name, first, last)[:, : None if is_a(name) else self._rank]


class FullRankUpdate(AdapterSource):
    """A view of a lower-rank update as the adapter of the run's rank that it stands for."""

    def __init__(self, update: AdapterSource, base: AdapterSource) -> None:
        """`base` is the adapter that the round started from."""
        self.layout = base.layout
        self.rank = rank_of(update.layout)
        self._update = update
        self._base = base

    def rows(self, name: str, first: int, last: int) -> Array:
        rows = np.array(self._base.rows(name, first, last))
        if not is_a(name):
            rows[:, : self.rank] = self._update.rows(name, first, last)
        elif first < self.rank:
            end = min(last, self.rank)
            rows[: end - first] = self._update.rows(name, first, end)
        return rows
