"""The wire format of updates: the whole adapter in float32, or its difference to the round's start.

With d = theta_n - theta_round + e, where e is the error left by this client's earlier updates:

    bfloat16   Q(d) = d rounded to the nearest bfloat16, ties to even
    int8       Q(d) = s q, q = round(d / s) in -127..127, s = max |d| / 127

with one s for each of the rank's r directions: a row of A (r, in), a column of B (out, r). So the
scales cost 4 / max(in, out) of the file, where a scale for each row of B would cost 4 / r of it.
The client keeps e' = d - Q(d) for its next update. So the sum of what is sent over the rounds never
differs from the true sum by more than one quantisation step (error feedback, Seide et al. 2014;
Karimireddy et al. 2019).

A reduced file must be canonical: the tensors `NAME` (BF16 or I8) and, for int8, `NAME.scale` (F32),
the widest dtype first and then by name, under one header.
"""

from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.errors import InvalidAdapter
from pubswap_protocol.settings import Precision, RunSettings
from pubswap_protocol.tensors.adapter import (
    LARGEST,
    Adapter,
    AdapterFile,
    AdapterLayout,
    AdapterSource,
    Array,
    MappedFile,
    check_numbers,
    encode_adapter,
    sent_layout,
)
from pubswap_protocol.tensors.ranks import Narrowed, Widened, layout_of_update
from pubswap_protocol.tensors.safetensors_header import (
    DTYPE_BYTES,
    TensorSpec,
    data_bytes,
    header_bytes,
    packed,
)

Bits = NDArray[np.uint16]
Levels = NDArray[np.int8]

TOP = 127


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


def scales_shape(shape: tuple[int, int]) -> tuple[int, int]:
    """One scale for each row of a wide matrix, for each column of a tall one.

    Those are the directions of the rank: rows of A (r, in), columns of B (out, r).
    """
    rows, columns = shape
    return (rows, 1) if rows <= columns else (1, columns)


def to_int8(array: Array) -> tuple[Levels, Array]:
    """Levels q and scales s with array = s q + error, |error| <= s / 2; s = max |array| / 127.

    A direction whose scale is too small for a float32 has q = 0: all of it is error.
    """
    axis = 1 if len(array) <= array.shape[1] else 0
    scales: Array = np.abs(array).max(axis=axis, keepdims=True) / np.float32(TOP)
    levels = np.rint(array / np.where(scales > 0, scales, np.float32(1)))
    return np.clip(levels, -TOP, TOP).astype(np.int8), scales


def from_int8(levels: Levels, scales: Array) -> Array:
    """The numbers s q."""
    return levels.astype(np.float32) * scales


Reduced = Literal["bfloat16", "int8"]

SCALE = ".scale"
_DTYPES = {"bfloat16": "BF16", "int8": "I8"}


def encode_update(
    layout: AdapterLayout,
    precision: Precision,
    adapter: Mapping[str, Array],
    base: Mapping[str, Array],
    residual: Mapping[str, Array],
) -> tuple[bytes, Adapter]:
    """The file to send, and the error that it leaves: the next round's residual.

    `base` is the adapter that the round started from; `residual` is empty before the first update.
    In float32 nothing is left out. Raises InvalidAdapter if training has diverged.
    """
    for name in layout.specs:
        check_numbers(name, adapter[name])
    if precision == "float32":
        return encode_adapter(layout, adapter), {}
    parts, new_residual = dict[str, NDArray[Any]](), Adapter()
    for name in layout.specs:
        difference = adapter[name] - base[name]
        if name in residual:
            difference += residual[name]
        check_numbers(name, difference)
        if precision == "bfloat16":
            parts[name] = to_bfloat16(difference)
        else:
            parts[name], parts[name + SCALE] = to_int8(difference)
        new_residual[name] = difference - _decoded(parts[name], parts.get(name + SCALE))
    specs, file = specs_of(layout, precision), BytesIO()
    file.write(header_bytes(specs))
    for name in specs:
        file.write(parts[name].tobytes())
    return file.getvalue(), new_residual


def open_update(
    path: Path, layout: AdapterLayout, precision: Precision, min_rank: int | None = None
) -> "AdapterFile | ReducedFile":
    """Open an update's file and check its header; `digest` checks the numbers.

    With `min_rank`, its rank may be from that one up to the layout's. Raises InvalidAdapter.
    """
    layout = layout_of_update(path, layout, min_rank)
    if precision == "float32":
        return AdapterFile(path, layout)
    return ReducedFile(path, layout, precision)


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
            update, Narrowed(base, update.layout) if narrow else base
        )
    else:
        viewed = update
    return Widened(viewed, base) if narrow else viewed


def largest_update(layout: AdapterLayout, run: RunSettings) -> int:
    """The bytes of an update at the run's rank; lower ranks need fewer."""
    return _file_bytes(layout, run.aggregation.rule, run.wire.precision)


@lru_cache(maxsize=256)  # the coordinator would spend milliseconds on it for each upload
def _file_bytes(layout: AdapterLayout, rule: str, precision: Precision) -> int:
    specs = specs_of(sent_layout(layout, rule), precision)
    return len(header_bytes(specs)) + data_bytes(specs)


def specs_of(layout: AdapterLayout, precision: Precision) -> dict[str, TensorSpec]:
    """The place of each tensor in an update's file."""
    if precision == "float32":
        return layout.specs
    entries = [(name, _DTYPES[precision], shape) for name, shape in layout.tensors.items()]
    if precision == "int8":
        for name, shape in layout.tensors.items():
            entries.append((name + SCALE, "F32", scales_shape(shape)))
    # The widest dtype first.
    return packed(sorted(entries, key=lambda each: (-DTYPE_BYTES[each[1]], each[0])))


class ReducedFile(MappedFile):
    """A checked file with an update's difference."""

    def __init__(self, path: Path, layout: AdapterLayout, precision: Reduced) -> None:
        """Open, and check all but the numbers; raises InvalidAdapter."""
        self.layout = layout
        specs = specs_of(layout, precision)
        super().__init__(path, specs, header_bytes(specs))

    def check_part(self, name: str, values: NDArray[Any]) -> None:
        """Raises InvalidAdapter, naming the tensor and the number, if one is not finite or its
        magnitude is over LARGEST, or a scale is negative."""
        dtype = self.specs[name].dtype
        if dtype == "BF16":
            check_numbers(name, from_bfloat16(values))
        if dtype == "F32":  # scales
            check_numbers(name, values, LARGEST / TOP)
            if values.min() < 0:
                raise InvalidAdapter(f"Tensor {name!r} holds a scale below 0: {values.min():.6g}.")

    def difference(self, name: str, first: int = 0, last: int | None = None) -> Array:
        """Rows first .. last - 1 of a tensor's difference to the round's start."""
        values, scales = self.raw(name)[first:last], None
        if name + SCALE in self.specs:
            scales = self.raw(name + SCALE)
            if len(scales) > 1:
                scales = scales[first:last]
        return _decoded(values, scales)


class RebuiltAdapter(AdapterSource):
    """theta_round + Q(d), read a tensor or some rows at a time."""

    def __init__(self, update: ReducedFile, base: AdapterSource) -> None:
        self.layout = update.layout
        self._update = update
        self._base = base

    def rows(self, name: str, first: int, last: int) -> Array:
        return self._base.rows(name, first, last) + self._update.difference(name, first, last)


def _decoded(values: NDArray[Any], scales: NDArray[Any] | None) -> Array:
    return from_bfloat16(values) if scales is None else from_int8(values, scales)
