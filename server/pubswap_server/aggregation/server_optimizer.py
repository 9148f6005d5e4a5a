"""The state of a server optimizer, and the adapter after its step, a slice at a time."""

from collections.abc import Iterator

import numpy as np

from pubswap_protocol.methods.server_optimizers import ServerOptimizer
from pubswap_protocol.tensors.adapter import AdapterLayout, AdapterSource
from pubswap_server.aggregation.means import Means, Row
from pubswap_server.aggregation.updates import Slice, slices, width_for


def state_layout(layout: AdapterLayout, optimizer: ServerOptimizer) -> AdapterLayout:
    """For each tensor that clients send, one of the same shape for each part of its state."""
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
    # The parts of a tensor's state follow each other in the file: all but the first have to wait.
    waiting: list[list[bytes]] = [[] for _ in optimizer.memory]
    name = None
    for slice_, delta in means.moves():
        state = optimizer.advance(_read(optimizer, old, slice_), delta)
        rounded = [part.astype(np.float32).tobytes() for part in state]
        if slice_.name != name:
            yield from _emptied(waiting)
            name = slice_.name
        yield rounded[0]
        for buffer, part in zip(waiting[1:], rounded[1:], strict=True):
            buffer.append(part)
    yield from _emptied(waiting)


def adapter_bytes(
    previous: AdapterSource, optimizer: ServerOptimizer, state: AdapterSource
) -> Iterator[bytes]:
    """The canonical file of the next global adapter."""
    first, *_ = optimizer.memory
    yield previous.layout.header
    for slice_ in slices(previous.layout, width_for(1)):
        values = slice_.of(previous)
        if _name(slice_.name, first) not in state.layout.tensors:
            yield values.tobytes()
            continue
        step = optimizer.step(_read(optimizer, state, slice_))
        yield (values + step).astype(np.float32).tobytes()


def _read(optimizer: ServerOptimizer, state: AdapterSource | None, slice_: Slice) -> list[Row]:
    """The state of a slice, as rounded, or its initial value."""
    if state is None:
        starts = optimizer.memory.values()
        parts = [np.full(slice_.numbers, start, dtype=np.float32) for start in starts]
    else:
        parts = [
            state.rows(_name(slice_.name, part), slice_.first, slice_.last).reshape(-1)
            for part in optimizer.memory
        ]
    return [part.astype(np.float64) for part in parts]


def _emptied(waiting: list[list[bytes]]) -> Iterator[bytes]:
    for parts in waiting:
        yield from parts
        parts.clear()


def _name(name: str, part: str) -> str:
    """The name of a state tensor, next in the file to the others of the same adapter tensor."""
    return f"{name}.{part}"
