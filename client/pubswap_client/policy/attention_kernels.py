"""Kernels for attention over a pack's tree, and the order in which each device tries them.

Each takes queries (1, H, S, D), keys and values (1, H_kv, S, D), and returns (1, S, H, D). `window`
is the number of positions a token sees, including itself, or None for all. A kernel that does not
support its input may raise anything; the self-check then tries the next one.
"""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.attention
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad, scaled_dot_product_attention

from pubswap_client.policy.tree import Span, Tree, sent

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128  # queries at a time on a CPU, so that causality saves half the scores
FLEX_BLOCK = 128
BATCH_TOKENS = 1 << 16  # keys gathered at a time: 256 MiB at 2,048 values of bfloat16 each

Kernel = Callable[[Tensor, Tensor, Tensor, Tree, float, int | None], Tensor]


def packed_kernels(device: torch.device, dtype: torch.dtype) -> tuple[str, ...]:
    """The kernels to try, fastest first. Flash attention needs a GPU and half precision."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return ("portable",)
    everywhere = ("flash", "flex", "portable")
    return ("flash3", *everywhere) if _has_flash_attention_3(device) else everywhere


def _has_flash_attention_3(device: torch.device) -> bool:
    """Whether it is installed, torch can activate it, and the GPU is a Hopper."""
    if find_spec("flash_attn_interface") is None:
        return False
    activatable = hasattr(torch.nn.attention, "activate_flash_attention_impl")
    return activatable and torch.cuda.get_device_capability(device)[0] == 9


@contextmanager
def activated(kernel: str) -> Iterator[None]:
    """Activate the flash attention that the kernel needs, for the backward pass too."""
    if kernel != "flash3":
        yield
        return
    torch.nn.attention.activate_flash_attention_impl("FA3")
    try:
        yield
    finally:
        torch.nn.attention.restore_flash_attention_impl()


def flash(
    query: Tensor, key: Tensor, value: Tensor, tree: Tree, scaling: float, window: int | None
) -> Tensor:
    """One variable-length flash attention call. Each span is a sequence with its prefix's keys."""
    from torch.nn.attention.varlen import varlen_attn

    # Emulate options that this torch's call lacks: 2.9 has neither scale nor windows.
    parameters = _parameters(varlen_attn)
    options: dict[str, Any] = {}
    if "scale" in parameters:
        options["scale"] = scaling
    else:
        query = query * (scaling * math.sqrt(query.shape[-1]))
    if "window_size" in parameters:
        options["window_size"] = (-1 if window is None else window - 1, 0)
    elif window is None:
        options["is_causal"] = True
    else:
        raise NotImplementedError("this torch's flash attention has no sliding window")
    queries, keys, values = (whole.squeeze(0).transpose(0, 1) for whole in (query, key, value))
    keys, values = (
        Keys.apply(whole, tree)  # type: ignore[no-untyped-call]
        for whole in (keys, values)
    )
    if queries.shape[1] != keys.shape[1] and "enable_gqa" in parameters:
        options["enable_gqa"] = True  # without the option, the kernel takes shared heads anyway
    output = varlen_attn(
        queries.contiguous(),
        keys,
        values,
        *tree.ends,
        max(tree.query_counts),
        max(tree.key_counts),
        **options,
    )
    assert isinstance(output, Tensor)
    return output.unsqueeze(0)


class Keys(torch.autograd.Function):
    """A pack's values (S, ...) at its tree's keys (n, ...).

    The gradient of index_select adds every row to memory atomically, and rounds each time. Here a
    token's gradients are gathered and summed in float32, and only prompt tokens have several.
    """

    @staticmethod
    def forward(ctx: Any, whole: Tensor, tree: Tree) -> Tensor:
        ctx.tree = tree
        return whole.index_select(0, tree.keys)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.index_select(0, ctx.tree.own)
        for tokens, places in ctx.tree.copies:
            copies = gradient.index_select(0, places.flatten())
            copies = copies.view(*places.shape, *gradient.shape[1:])
            total.index_add_(0, tokens, copies.sum(dim=1))
        return total, None


@cache
def _parameters(function: Callable[..., object]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def flex(
    query: Tensor, key: Tensor, value: Tensor, tree: Tree, scaling: float, window: int | None
) -> Tensor:
    """FlexAttention, compiled, over the blocks in which any token sees another."""
    size = query.shape[2]
    mask = tree.cached(("flex", window), lambda: block_mask(tree, window))
    # Pad to whole blocks, so that no kernel meets a ragged end.
    more = mask.shape[-1] - size
    query, key, value = (pad(whole, (0, 0, 0, more)) for whole in (query, key, value))
    output: Tensor = compiled_flex()(
        query,
        key,
        value,
        block_mask=mask,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output[:, :, :size].transpose(1, 2)


@cache
def compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    # Uncompiled, it would hold all scores, so a graph break must be an error. Dynamic, because
    # packs differ in length.
    return torch.compile(flex_attention, dynamic=True, fullgraph=True)


def block_mask(tree: Tree, window: int | None) -> "BlockMask":
    """FlexAttention's mask of a tree, built from its spans without ever holding an S x S matrix.

    A query sees the keys of its span up to itself and the whole prefix, as far as they are less
    than `window` positions back.
    """
    from torch.nn.attention.flex_attention import BlockMask

    size = tree.spans[-1].end
    blocks = max(2, -(-size // FLEX_BLOCK))  # a single block would be compiled separately
    positions = torch.arange(blocks * FLEX_BLOCK)
    starts = positions.clone()  # padding past the end sees itself
    prefix_starts, prefix_ends, depths, first = (torch.zeros_like(positions) for _ in range(4))
    visible = torch.eye(blocks, dtype=torch.bool)
    for span in tree.spans:
        tokens = slice(span.start, span.end)
        starts[tokens] = span.start
        prefix_starts[tokens], prefix_ends[tokens] = span.prefix_start, span.prefix_end
        depths[tokens] = torch.arange(span.end - span.start) + span.prefix_end - span.prefix_start
        rows = _blocks(span.start, span.end)
        visible[rows, _blocks(span.prefix_start, span.prefix_end)] = True
        visible[rows, rows] |= torch.ones_like(visible[rows, rows]).tril()
    if window is not None:
        first = depths - window + 1
    starts, prefix_starts, prefix_ends, depths, first = (
        sent(each, tree.device) for each in (starts, prefix_starts, prefix_ends, depths, first)
    )

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        in_span = (key >= starts[query]) & (key <= query)
        in_prefix = (key >= prefix_starts[query]) & (key < prefix_ends[query])
        return (in_span | in_prefix) & (depths[key] >= first[query])

    counts = visible.sum(dim=1, dtype=torch.int32)
    indices = visible.to(torch.uint8).argsort(dim=1, descending=True, stable=True).int()
    return BlockMask.from_kv_blocks(
        sent(counts[None, None], tree.device),
        sent(indices[None, None], tree.device),
        BLOCK_SIZE=FLEX_BLOCK,
        mask_mod=sees,
    )


def _blocks(start: int, end: int) -> slice:
    """The blocks that hold any of the positions start..end."""
    return slice(start // FLEX_BLOCK, -(-end // FLEX_BLOCK) if end > start else start // FLEX_BLOCK)


def portable(
    query: Tensor, key: Tensor, value: Tensor, tree: Tree, scaling: float, window: int | None
) -> Tensor:
    """scaled_dot_product_attention, which runs anywhere: span by span on a CPU, else in batches."""
    attend = batched if query.is_cuda else span_by_span
    return attend(query, key, value, tree, scaling, window)


def span_by_span(
    query: Tensor, key: Tensor, value: Tensor, tree: Tree, scaling: float, window: int | None
) -> Tensor:
    """Attend without padding and with half of the scores, in many small calls."""
    # Gather and split once. A slice's gradient is as large as the tensor it was cut from, so a
    # slice per span would make the backward pass quadratic in the pack.
    keys, values = (
        torch.split(whole.index_select(2, tree.keys), tree.key_counts, dim=2)
        for whole in (key, value)
    )
    queries = torch.split(query, tree.query_counts, dim=2)
    parts = []
    for span_queries, span_keys, span_values in zip(queries, keys, values, strict=True):
        count = span_keys.shape[2] - span_queries.shape[2]
        for block in torch.split(span_queries, BLOCK, dim=2):
            count += block.shape[2]
            parts.append(
                scaled_dot_product_attention(
                    block,
                    span_keys[:, :, :count],
                    span_values[:, :, :count],
                    attn_mask=causal_mask(block.shape[2], count, window, key.device),
                    scale=scaling,
                    enable_gqa=query.shape[1] != key.shape[1],
                )
            )
    return torch.cat(parts, dim=2).transpose(1, 2)


def causal_mask(queries: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """Mask (queries, keys) of the last `queries` of `keys` positions, at most `window` back."""
    offset = keys - queries
    mask = torch.ones((queries, keys), dtype=torch.bool, device=device).tril(offset)
    return mask if window is None else mask.triu(offset - window + 1)


def batched(
    query: Tensor, key: Tensor, value: Tensor, tree: Tree, scaling: float, window: int | None
) -> Tensor:
    """Attend to spans of similar shape in one call, left-padded to powers of two."""
    groups = query.shape[1] // key.shape[1]
    batches = tree.cached("batches", lambda: list(_batches(tree)))
    outputs = []
    for queries, keys, query_mask, key_mask, real in batches:
        # With shared key heads, masked attention would use the slow kernel.
        batch_keys, batch_values = (
            _gathered(whole, keys).repeat_interleave(groups, dim=1) for whole in (key, value)
        )
        mask = (
            causal_mask(queries.shape[1], keys.shape[1], window, query.device)
            & key_mask[:, None, :]
        )
        # Padding sees everything, because a softmax over nothing is NaN.
        mask = (mask | ~query_mask[:, :, None])[:, None]
        output = scaled_dot_product_attention(
            _gathered(query, queries), batch_keys, batch_values, attn_mask=mask, scale=scaling
        )
        outputs.append(output.transpose(1, 2).flatten(0, 1).index_select(0, real))
    order = tree.cached(
        "order", lambda: torch.cat([batch[0].flatten()[batch[-1]] for batch in batches]).argsort()
    )
    return torch.cat(outputs).index_select(0, order)[None]


def _batches(tree: Tree) -> Iterator[tuple[Tensor, ...]]:
    """Positions of queries (n, Q) and keys (n, K), masks of real ones, and flat query indices."""
    shapes: dict[tuple[int, int], list[Span]] = {}
    for span in tree.spans:
        count = span.end - span.start
        shape = count, count + span.prefix_end - span.prefix_start
        queries, keys = map(_power_of_two, shape)
        shapes.setdefault((queries, keys), []).append(span)
    for (queries, keys), spans in shapes.items():
        count = max(1, BATCH_TOKENS // keys)
        for start in range(0, len(spans), count):
            part = spans[start : start + count]
            query_ranges = [torch.arange(span.start, span.end) for span in part]
            prefixes = [torch.arange(span.prefix_start, span.prefix_end) for span in part]
            key_ranges = [torch.cat(pair) for pair in zip(prefixes, query_ranges, strict=True)]
            rows, columns = (
                torch.stack([pad(each, (size - len(each), 0), value=-1) for each in ranges])
                for ranges, size in ((query_ranges, queries), (key_ranges, keys))
            )
            query_mask, key_mask = rows >= 0, columns >= 0
            real = query_mask.flatten().nonzero().squeeze(1)
            tensors = (rows.clamp(min=0), columns.clamp(min=0), query_mask, key_mask, real)
            yield tuple(sent(each, tree.device) for each in tensors)


def _power_of_two(count: int) -> int:
    return max(16, 1 << (count - 1).bit_length())


def _gathered(whole: Tensor, positions: Tensor) -> Tensor:
    """The values (n, H, L, D) at positions (n, L) of a pack's (1, H, S, D)."""
    flat = whole.squeeze(0).index_select(1, positions.flatten())
    return flat.view(len(flat), *positions.shape, -1).transpose(0, 1)


KERNELS: dict[str, Kernel] = {
    "flash3": flash,
    "flash": flash,
    "flex": flex,
    "portable": portable,
}
