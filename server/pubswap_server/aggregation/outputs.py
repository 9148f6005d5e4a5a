"""The files that a round makes: its global adapter, and the state of a server optimizer.

Each is written a slice at a time, in a pass that reads each of the clients' files once.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.messages import Digest
from pubswap_protocol.methods.rules import Rule, Svd
from pubswap_protocol.methods.server_optimizers import ServerOptimizer
from pubswap_protocol.tensors.adapter import (
    LARGEST_DERIVED,
    AdapterFile,
    AdapterLayout,
    AdapterSource,
)
from pubswap_server.aggregation.log_lines import LogLine
from pubswap_server.aggregation.truncation import Truncation
from pubswap_server.aggregation.updates import Slice, Updates, slices_of
from pubswap_server.storage.store import BlobStore

Row = NDArray[np.float64]
Results = Iterator[tuple[Slice, Row | None]]
"""Each slice, with the exact result (S,) until the next one; None if clients do not send it."""


def write(
    updates: Updates,
    slices: Iterable[Slice],
    rule: Rule,
    optimizer: ServerOptimizer,
    *,
    old_state: Path | None,
    store: BlobStore,
) -> tuple[Digest, Digest | None, list[LogLine]]:
    """Store the adapter and, if there is an optimizer, its state; also returns lines for the log.

    Raises InvalidAdapter for a result that would be refused as an upload.
    """
    layout, log, new_state = updates.previous.layout, list[LogLine](), None
    results = combined(slices, rule, updates.shares, updates.widest)
    if isinstance(rule, Svd):
        truncation = Truncation(updates)
        adapter, _ = store.write(truncation.adapter())
        log.append(LogLine("rank truncated", {"left_out": truncation.left_out}))
    elif not optimizer.memory:
        adapter, _ = store.write(adapter_file(layout, results))
    else:
        of_state = state_layout(updates.layout, optimizer)
        old = AdapterFile(old_state, of_state) if old_state is not None else None
        new_state, _ = store.write(state_file(of_state, results, optimizer, old))
        new = AdapterFile(store.path(new_state), of_state)
        new.check(LARGEST_DERIVED)
        adapter, _ = store.write(stepped_file(updates.previous, optimizer, new))
    AdapterFile(store.path(adapter), layout).check()
    return adapter, new_state, log


def combined(slices: Iterable[Slice], rule: Rule, shares: Sequence[float], widest: int) -> Results:
    """The rule's result for each slice, in one buffer of the `widest` one's size."""
    buffer = np.empty(widest)
    for each in slices:
        if each.rows:
            exact = buffer[: each.previous.size]
            rule.combine(each.rows, shares, exact)
            yield each, exact
        else:
            yield each, None


def adapter_file(layout: AdapterLayout, results: Results) -> Iterator[bytes]:
    """The canonical file of the result; tensors that clients do not send are unchanged."""
    yield layout.header
    for each, exact in results:
        yield (each.previous if exact is None else exact.astype(np.float32)).tobytes()


def state_layout(layout: AdapterLayout, optimizer: ServerOptimizer) -> AdapterLayout:
    """For each tensor that clients send, one of the same shape for each part of its state."""
    tensors = {
        _name(name, part): shape
        for name, shape in layout.tensors.items()
        for part in optimizer.memory
    }
    return AdapterLayout(tensors=tensors)


def state_file(
    layout: AdapterLayout, results: Results, optimizer: ServerOptimizer, old: AdapterSource | None
) -> Iterator[bytes]:
    """The canonical file of the optimizer's next state; `old` is None in the first round."""
    yield layout.header
    sent = ((each, exact) for each, exact in results if exact is not None)
    for _, of_tensor in groupby(sent, key=lambda result: result[0].name):
        # The parts of a tensor's state follow each other in the file: all but the first wait.
        waiting = []
        for each, exact in of_tensor:
            delta = np.subtract(exact, each.previous, out=exact)
            state = optimizer.advance(_read(optimizer, old, each), delta)
            first, *others = (part.astype(np.float32).tobytes() for part in state)
            yield first
            waiting.append(others)
        for part in zip(*waiting, strict=True):
            yield from part


def stepped_file(
    previous: AdapterSource, optimizer: ServerOptimizer, state: AdapterSource
) -> Iterator[bytes]:
    """The canonical file of the adapter after the optimizer's step from its rounded state."""
    first, *_ = optimizer.memory
    yield previous.layout.header
    for each in slices_of(previous):
        if _name(each.name, first) not in state.layout.tensors:
            yield each.previous.tobytes()
            continue
        step = optimizer.step(_read(optimizer, state, each))
        yield (each.previous + step).astype(np.float32).tobytes()


def _read(optimizer: ServerOptimizer, state: AdapterSource | None, each: Slice) -> list[Row]:
    """The state of a slice, as rounded, or its initial value."""
    if state is None:
        starts = optimizer.memory.values()
        parts = [np.full(each.previous.size, start, dtype=np.float32) for start in starts]
    else:
        parts = [
            state.rows(_name(each.name, part), each.first, each.last).reshape(-1)
            for part in optimizer.memory
        ]
    return [part.astype(np.float64) for part in parts]


def _name(name: str, part: str) -> str:
    """The name of a state tensor, next in the file to the others of the same adapter tensor."""
    return f"{name}.{part}"
