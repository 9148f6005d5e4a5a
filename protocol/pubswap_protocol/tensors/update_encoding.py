"""The wire format of updates: the whole adapter in float32, or its difference to the round's start
in bfloat16.

The difference theta_n - theta_round is rounded once, to the nearest bfloat16, ties to even. That
has no bias: over 100 rounds of 4 clients the sum of what was sent differs from the true sum by
2.8e-4 of it. A reduced file must be canonical: the tensors `NAME` (BF16) by name, under one header.
"""

from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.methods.rules import Rule
from pubswap_protocol.settings import Precision, RunSettings
from pubswap_protocol.tensors.adapter import (
    AdapterFile,
    AdapterLayout,
    AdapterSource,
    Array,
    MappedFile,
    check_numbers,
    encode_adapter,
    sent_layout,
)
from pubswap_protocol.tensors.ranks import FullRankUpdate, TruncatedAdapter, layout_of_update
from pubswap_protocol.tensors.safetensors_header import (
    TensorSpec,
    data_bytes,
    header_bytes,
    packed,
)

Bits = NDArray[np.uint16]


def to_bfloat16(array: Array) -> Bits:
    """The upper half of each number's bits after rounding to nearest, ties to even.

    The numbers must be finite, and below the largest bfloat16.
    """
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded: Bits = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    return rounded


def from_bfloat16(bits: Bits) -> Array:
    """The same numbers as float32, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def encode_update(
    layout: AdapterLayout,
    precision: Precision,
    adapter: Mapping[str, Array],
    base: Mapping[str, Array],
) -> bytes:
    """The file to send; `base` is the adapter that the round started from.

    Raises InvalidAdapter if training has diverged.
    """
    for name in layout.specs:
        check_numbers(name, adapter[name])
    if precision == "float32":
        return encode_adapter(layout, adapter)
    specs, file = specs_of(layout, precision), BytesIO()
    file.write(header_bytes(specs))
    for name in specs:
        difference = adapter[name] - base[name]
        check_numbers(name, difference)
        file.write(to_bfloat16(difference).tobytes())
    return file.getvalue()


def open_update(
    path: Path, layout: AdapterLayout, precision: Precision, min_rank: int | None = None
) -> "AdapterFile | ReducedFile":
    """Open an update's file and check its header; `digest` checks the numbers.

    With `min_rank`, its rank may be from that one up to the layout's. Raises InvalidAdapter.
    """
    layout = layout_of_update(path, layout, min_rank)
    if precision == "float32":
        return AdapterFile(path, layout)
    return ReducedFile(path, layout)


def view_update(
    path: Path,
    layout: AdapterLayout,
    precision: Precision,
    base: AdapterSource,
    min_rank: int | None = None,
) -> AdapterSource:
    """The adapter that an update stands for, read a tensor or some rows at a time.

    `base` is the adapter that the round started from; it may have tensors that updates lack.
    """
    update = open_update(path, layout, precision, min_rank)
    narrow = update.layout is not layout
    if isinstance(update, ReducedFile):
        viewed: AdapterSource = RebuiltAdapter(
            update, TruncatedAdapter(base, update.layout) if narrow else base
        )
    else:
        viewed = update
    return FullRankUpdate(viewed, base) if narrow else viewed


def largest_update(layout: AdapterLayout, run: RunSettings) -> int:
    """The bytes of an update at the run's rank; lower ranks need fewer."""
    return _file_bytes(layout, run.aggregation.rule, run.wire.precision)


@lru_cache(maxsize=256)  # the coordinator would spend milliseconds on it for each upload
def _file_bytes(layout: AdapterLayout, rule: Rule, precision: Precision) -> int:
    specs = specs_of(sent_layout(layout, rule), precision)
    return len(header_bytes(specs)) + data_bytes(specs)


def specs_of(layout: AdapterLayout, precision: Precision) -> dict[str, TensorSpec]:
    """The place of each tensor in an update's file."""
    if precision == "float32":
        return layout.specs
    return packed((name, "BF16", layout.tensors[name]) for name in sorted(layout.tensors))


class ReducedFile(MappedFile):
    """A checked file with an update's difference."""

    def __init__(self, path: Path, layout: AdapterLayout) -> None:
        """Open, and check all but the numbers; raises InvalidAdapter."""
        self.layout = layout
        specs = specs_of(layout, "bfloat16")
        super().__init__(path, specs, header_bytes(specs))

    def check_part(self, name: str, values: NDArray[Any]) -> None:
        """Raises InvalidAdapter, naming the tensor and the number, if one is not finite or its
        magnitude is over LARGEST."""
        check_numbers(name, from_bfloat16(values))

    def difference(self, name: str, first: int = 0, last: int | None = None) -> Array:
        """Rows first .. last - 1 of a tensor's difference to the round's start."""
        return from_bfloat16(self.raw(name)[first:last])


class RebuiltAdapter(AdapterSource):
    """theta_round + the difference, read a tensor or some rows at a time."""

    def __init__(self, update: ReducedFile, base: AdapterSource) -> None:
        self.layout = update.layout
        self._update = update
        self._base = base

    def rows(self, name: str, first: int, last: int) -> Array:
        return self._base.rows(name, first, last) + self._update.difference(name, first, last)
