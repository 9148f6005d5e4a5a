"""Rounding of float32 matrices to bfloat16, and to int8 with one scale for each direction."""

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.adapter import Array

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
    axis = scales_shape(array.shape).index(1) if array.shape != (1, 1) else 1
    scales: Array = np.abs(array).max(axis=axis, keepdims=True) / np.float32(TOP)
    levels = np.rint(array / np.where(scales > 0, scales, np.float32(1)))
    return np.clip(levels, -TOP, TOP).astype(np.int8), scales


def from_int8(levels: Levels, scales: Array) -> Array:
    """s q."""
    return levels.astype(np.float32) * scales
