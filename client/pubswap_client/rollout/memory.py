"""Memory estimates for sampling with transformers, and the number of rows that fit."""

from dataclasses import dataclass

from pubswap_client.policy.memory import Shape
from pubswap_protocol.tensors.adapter import AdapterLayout, modules

PREFILL_TOKENS = 1 << 15  # in one forward pass, including padding; at least one prompt
USABLE = 0.8  # of the free memory: the rest is fragmentation, CUDA graphs, the estimate's error


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of the longest prompt and response, and the number of responses per prompt."""

    prompt: int
    response: int
    group: int


def rollout_bytes(shape: Shape, rows: int, lengths: Lengths) -> int:
    """Bytes that transformers needs to sample `rows` responses at a time."""
    return _prefill_bytes(shape, rows, lengths) + rows * _row_bytes(shape, lengths)


def rows_that_fit(shape: Shape, limit: int, lengths: Lengths, free: int) -> int:
    """Responses that can be sampled at a time in `free` bytes: 1 to `limit`."""
    available = int(USABLE * free) - _prefill_bytes(shape, limit, lengths)
    return max(1, min(limit, available // _row_bytes(shape, lengths)))


def merged_bytes(layout: AdapterLayout, shape: Shape) -> int:
    """Bytes of a second copy of the adapted weights; an A is (r, in), a B (out, r)."""
    tensors = layout.tensors
    values = sum(tensors[a][1] * tensors[b][0] for a, b in modules(layout))
    return values * shape.bytes_per_value


def _row_bytes(shape: Shape, lengths: Lengths) -> int:
    """Bytes of one row: its keys and values, and a step's logits with their float64 distribution.

    One layer's keys and values exist twice while finished rows are dropped.
    """
    keys_and_values = (lengths.prompt + lengths.response) * _layer_bytes(shape)
    return (shape.layers + 1) * keys_and_values + shape.vocabulary * (shape.bytes_per_value + 24)


def _prefill_bytes(shape: Shape, rows: int, lengths: Lengths) -> int:
    """Bytes of one part of the prompts: their keys and values, and one layer's activations."""
    prompts = -(-rows // lengths.group)
    tokens = min(prompts * lengths.prompt, max(lengths.prompt, PREFILL_TOKENS))
    values = 4 * shape.intermediate + 2 * shape.hidden + 3 * shape.heads * shape.head_dim
    activations = values * shape.bytes_per_value + 2 * 4 * shape.hidden  # norms are in float32
    return tokens * (shape.layers * _layer_bytes(shape) + activations)


def _layer_bytes(shape: Shape) -> int:
    """Bytes of one token's key and value in one layer."""
    return 2 * shape.key_heads * shape.head_dim * shape.bytes_per_value
