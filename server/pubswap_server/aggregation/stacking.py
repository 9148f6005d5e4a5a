"""Sums of LoRA products as one pair of factors: sum_t B_t A_t = [B_1 B_2 ...] [A_1; A_2; ...].

A stack with a higher rank than its matrix can have is written as the product itself, with the
identity as the other factor. That is exact, needs no decomposition, and is no larger.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pubswap_protocol.tensors.adapter import (
    AdapterLayout,
    AdapterSource,
    Array,
    is_a,
    modules,
    stack_layout,
)
from pubswap_server.aggregation.updates import DerivedSource, Slice, Updates, slices

WIDTH = 1 << 18  # numbers of the result at a time
RANKS = 64  # of a factor at a time, when products are formed


@dataclass(frozen=True)
class Deviation(DerivedSource):
    """One client's part of FedEx-LoRA's residual: w_n (B_n - B) and A_n - A.

    As sum_n w_n B_n = B and sum_n w_n A_n = A, the residual sum_n w_n B_n A_n - B A is
    sum_n w_n (B_n - B) (A_n - A), which has lower rank and loses nothing to cancellation.
    """

    source: AdapterSource
    mean: AdapterSource
    share: float

    def rows(self, name: str, first: int, last: int) -> Array:
        source = self.source.rows(name, first, last).astype(np.float64)
        moved = source - self.mean.rows(name, first, last)
        return (moved if is_a(name) else self.share * moved).astype(np.float32)


def residual(updates: Updates, mean: AdapterSource) -> tuple[AdapterLayout, Iterator[bytes]]:
    """sum_n w_n B_n A_n - B A as a stack, with the mean B and A as published."""
    terms = [
        Deviation(source, mean, share)
        for source, share in zip(updates.sources, updates.shares, strict=True)
    ]
    return stacked(mean.layout, terms)


def stacked(
    layout: AdapterLayout, terms: Sequence[AdapterSource]
) -> tuple[AdapterLayout, Iterator[bytes]]:
    """The sum of the terms' products: its layout, and the canonical file's bytes in order."""
    ranks = {a: sum(term.layout.tensors[a][0] for term in terms) for a, _ in modules(layout)}
    max_ranks = {a: min(layout.tensors[a][1], layout.tensors[b][0]) for a, b in modules(layout)}
    result = stack_layout(layout, {a: min(ranks[a], max_ranks[a]) for a in ranks})
    dense = {name for a, b in modules(layout) if ranks[a] > max_ranks[a] for name in (a, b)}
    return result, _bytes(result, terms, dense)


def _bytes(
    result: AdapterLayout, terms: Sequence[AdapterSource], dense: set[str]
) -> Iterator[bytes]:
    yield result.header
    other = {name: pair for pair in modules(result) for name in pair}
    for slice_ in slices(result, WIDTH):
        if slice_.name in dense:
            yield _dense_rows(result, terms, other[slice_.name], slice_).tobytes()
        elif is_a(slice_.name):
            yield from _a_rows(terms, slice_)
        else:
            rows = [term.rows(slice_.name, slice_.first, slice_.last) for term in terms]
            yield np.concatenate(rows, axis=1).tobytes()


def _a_rows(terms: Sequence[AdapterSource], slice_: Slice) -> Iterator[bytes]:
    begin = 0
    for term in terms:
        rank = term.layout.tensors[slice_.name][0]
        first, last = max(slice_.first - begin, 0), min(slice_.last - begin, rank)
        if first < last:
            yield term.rows(slice_.name, first, last).tobytes()
        begin += rank


def _dense_rows(
    result: AdapterLayout, terms: Sequence[AdapterSource], pair: tuple[str, str], slice_: Slice
) -> Array:
    """Rows of the product, or of the identity that is its other factor."""
    a, b = pair
    inputs, outputs = result.tensors[a][1], result.tensors[b][0]
    product = b if inputs <= outputs else a
    if slice_.name != product:
        size = result.tensors[slice_.name][1]
        return np.eye(slice_.last - slice_.first, size, slice_.first, dtype=np.float32)
    total = np.zeros((slice_.last - slice_.first, inputs), dtype=np.float64)
    for term in terms:
        rows = term.rows(b, slice_.first, slice_.last).astype(np.float64)
        for first in range(0, rows.shape[1], RANKS):
            last = min(first + RANKS, rows.shape[1])
            total += rows[:, first:last] @ term.rows(a, first, last).astype(np.float64)
    return total.astype(np.float32)
