"""Passes over adapters: a few rows of one tensor at a time.

A slice of a client stays in a core's cache between the operations on it, and so do the buffers
that are used again for each slice. Dealing the slices of one pass to two threads was tried: handing
them over, and the interpreter's lock between operations of a few microseconds, cost more than it
gained.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pubswap_protocol.adapter import AdapterLayout

SLICE = 1 << 14  # numbers of one client at a time
STACK = 1 << 19  # numbers of all clients at a time, unless a slice became too narrow by it:
NARROWEST = 1 << 12  # a pass of many clients would be calls and little else


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows first .. last - 1 of a tensor."""

    name: str
    first: int
    last: int
    numbers: int


def width_for(clients: int) -> int:
    """How many numbers of each client fit in a slice."""
    return max(NARROWEST, min(SLICE, STACK // clients))


def slices(layout: AdapterLayout, width: int) -> Iterator[Slice]:
    """All rows in the order of the canonical file, about `width` numbers each: a row at least."""
    for name, spec in layout.specs.items():
        rows, columns = spec.shape
        step = max(1, width // columns)
        for first in range(0, rows, step):
            last = min(first + step, rows)
            yield Slice(name, first, last, (last - first) * columns)


def widest(layout: AdapterLayout, width: int) -> int:
    """The numbers of the largest slice."""
    return max(
        min(rows, max(1, width // columns)) * columns for rows, columns in layout.tensors.values()
    )
