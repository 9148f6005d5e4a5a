"""A key-value cache with room for all future tokens, so that appending one copies no others.

transformers' DynamicCache concatenates everything again at each token. Its StaticCache attends over
its whole capacity at each token, which rounds differently, and cannot drop rows.
"""

from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer


@dataclass
class Cursor:
    """Fill level of the layers: `length` tokens in each of them.

    With `slot` (1,), the next token is written there and its queries get the first `window` keys.
    Shapes and addresses are then the same at each step, as a CUDA graph needs.
    """

    length: int
    slot: Tensor | None = None
    window: int = 0


class PreallocatedLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values: buffers (B, H, capacity, D), filled up to the cursor."""

    def __init__(self, like: Any, rows: int, capacity: int, cursor: Cursor) -> None:
        """Allocate `rows` rows of `capacity` tokens like the ones that the layer `like` holds."""
        super().__init__()
        self.dtype, self.device, self.is_initialized = like.keys.dtype, like.keys.device, True
        self.cursor = cursor
        self.keys, self.values = (
            whole.new_empty((rows, whole.shape[1], capacity, whole.shape[3]))
            for whole in (like.keys, like.values)
        )

    def fill(self, rows: slice, like: Any, count: int) -> None:
        """Set `rows` to the rows of the layer `like`, each repeated `count` times."""
        for buffer, new in ((self.keys, like.keys), (self.values, like.values)):
            buffer[rows, :, : new.shape[2]] = new.repeat_interleave(count, dim=0)

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values (B, H, n, D); returns all of them so far."""
        slot, start = self.cursor.slot, self.cursor.length
        if slot is not None:
            self.keys.index_copy_(2, slot, key_states)
            self.values.index_copy_(2, slot, value_states)
            return self.keys[:, :, : self.cursor.window], self.values[:, :, : self.cursor.window]
        end = start + key_states.shape[2]
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        return self.cursor.length

    def clear(self, end: int) -> None:
        """Zero the free room up to `end`: masked values must be finite, because 0 * NaN is NaN."""
        for whole in (self.keys, self.values):
            whole[:, :, self.cursor.length : end] = 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep only the rows `beam_idx`, with the same capacity."""
        self.keys, self.values = (self._rows(whole, beam_idx) for whole in (self.keys, self.values))

    def _rows(self, whole: Tensor, rows: Tensor) -> Tensor:
        selected = whole.new_empty((len(rows), *whole.shape[1:]))
        selected[:, :, : self.cursor.length] = whole[:, :, : self.cursor.length][rows]
        return selected


def cache_name(model: Any) -> str:
    """The cache's name among the arguments and outputs of a PEFT model.

    transformers 5.24 renamed `past_key_values`, and warns of the old name.
    """
    arguments = signature(model.get_base_model().forward).parameters
    return "cache" if "cache" in arguments else "past_key_values"


def is_plain(cache: Any) -> bool:
    """Whether every layer keeps all keys and values, and nothing else."""
    kinds = (DynamicLayer, PreallocatedLayer)
    return all(type(layer) in kinds and layer.is_initialized for layer in cache.layers)


def preallocate(cache: Any, count: int, rows: int, capacity: int, cursor: Cursor) -> None:
    """Repeat each row `count` times, with room for `rows` rows of `capacity` tokens.

    Other kinds of layers (sliding windows, linear attention) grow in their own ways.
    """
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.is_initialized:
            cache.layers[index] = PreallocatedLayer(layer, rows, capacity, cursor)
            cache.layers[index].fill(slice(0, count * len(layer.keys)), layer, count)
        else:
            layer.reorder_cache(torch.arange(rows // count).repeat_interleave(count))


def fill(cache: Any, rows: slice, part: Any, count: int) -> None:
    """Set `rows` of a plain cache to the rows of `part`, each repeated `count` times."""
    for layer, new in zip(cache.layers, part.layers, strict=True):
        layer.fill(rows, new, count)
