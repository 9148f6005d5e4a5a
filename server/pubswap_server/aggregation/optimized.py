"""The files of a server optimizer: its state, and the adapter that follows from it.

The adapter is a function of the one before and of the new state alone, so that it is made in a
second pass without reading the clients' files again.
"""

from collections.abc import Iterator

import numpy as np

from pubswap_protocol.adapter import AdapterLayout, AdapterSource, Array
from pubswap_server.aggregation.means import Means
from pubswap_server.aggregation.server_optimizer import ServerOptimizer
from pubswap_server.aggregation.slices import Slice, slices, width_for


def state_layout(layout: AdapterLayout, optimizer: ServerOptimizer) -> AdapterLayout:
    """For each tensor that clients send, one of its shape for each thing remembered of it."""
    tensors = {
        _name(name, part): shape
        for name, shape in layout.tensors.items()
        for part in optimizer.memory
    }
    return AdapterLayout(tensors=tensors)


def state_bytes(
    means: Means, optimizer: ServerOptimizer, old: AdapterSource | None
) -> Iterator[bytes]:
    """The canonical file of the next state; `old` is None in the first round."""
    yield state_layout(means.updates.layout, optimizer).header
    # The parts of one tensor follow each other in the file: all but the first have to wait.
    waiting: list[list[Array]] = [[] for _ in optimizer.memory]
    name = None
    for slice_, delta in means.moves():
        state = optimizer.advance(_read(optimizer, old, slice_), delta)
        if slice_.name != name:
            yield from _emptied(waiting)
            name = slice_.name
        yield state[0].tobytes()
        for kept, part in zip(waiting[1:], state[1:], strict=True):
            kept.append(part)
    yield from _emptied(waiting)


def adapter_bytes(
    previous: AdapterSource, optimizer: ServerOptimizer, state: AdapterSource
) -> Iterator[bytes]:
    """The canonical file of the next global adapter."""
    first, *_ = optimizer.memory
    yield previous.layout.header
    for slice_ in slices(previous.layout, width_for(1)):
        before = previous.rows(slice_.name, slice_.first, slice_.last).reshape(-1)
        if _name(slice_.name, first) not in state.layout.tensors:
            yield before.tobytes()
            continue
        step = optimizer.step(_read(optimizer, state, slice_))
        yield (before + step).astype(np.float32).tobytes()


def _read(optimizer: ServerOptimizer, state: AdapterSource | None, slice_: Slice) -> list[Array]:
    """What is remembered of a slice, or what it begins with."""
    if state is None:
        starts = optimizer.memory.values()
        return [np.full(slice_.numbers, start, dtype=np.float32) for start in starts]
    return [
        state.rows(_name(slice_.name, part), slice_.first, slice_.last).reshape(-1)
        for part in optimizer.memory
    ]


def _emptied(waiting: list[list[Array]]) -> Iterator[bytes]:
    for parts in waiting:
        yield from (part.tobytes() for part in parts)
        parts.clear()


def _name(name: str, part: str) -> str:
    """A state's tensor; those of one adapter tensor are next to each other in the file."""
    return f"{name}.{part}"
