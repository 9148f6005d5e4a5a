"""Attention over a pack: every response sees its prompt and itself, and nothing else.

Registered with transformers' attention interface, so that any decoder that goes through it can
compute a prompt once for all of its responses. The result is exact, not an approximation: keys
are gathered, and no score outside the tree is ever computed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "pubswap_tree"
BLOCK = 128  # queries at a time on the portable path, so that causality saves half the scores


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens start..end of a pack that also see the tokens prefix_start..prefix_end."""

    start: int
    end: int
    prefix_start: int = 0
    prefix_end: int = 0


@dataclass(frozen=True)
class Tree:
    """The spans of a pack, in order and without gaps: prompts, and responses behind prefixes."""

    spans: Sequence[Span]
    device: torch.device

    @cached_property
    def keys(self) -> Tensor:
        """Each span's keys one after another, prefix first: positions in the pack."""
        ranges = [
            torch.arange(start, end)
            for span in self.spans
            for start, end in ((span.prefix_start, span.prefix_end), (span.start, span.end))
        ]
        return torch.cat(ranges).to(self.device)

    @cached_property
    def query_counts(self) -> list[int]:
        """Queries of each span."""
        return [span.end - span.start for span in self.spans]

    @cached_property
    def key_counts(self) -> list[int]:
        """Keys of each span, its prefix's among them."""
        return [s.end - s.start + s.prefix_end - s.prefix_start for s in self.spans]

    @cached_property
    def ends(self) -> tuple[Tensor, Tensor]:
        """Cumulative numbers of queries and of keys, each (spans + 1,), int32."""
        queries, keys = (
            torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=self.device)
            for counts in (self.query_counts, self.key_counts)
        )
        return queries, keys


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    *,
    tree: Tree,
    portable: bool = True,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of queries (1, H, S, D) on keys and values (1, H_kv, S, D): (1, S, H, D).

    `portable` goes span by span through scaled_dot_product_attention and runs anywhere; the other
    path is one variable-length flash call, for a GPU in half precision.
    """
    attend = _span_by_span if portable else _variable_length
    return attend(query, key, value, tree, scaling, sliding_window), None


def _span_by_span(
    query: Tensor, key: Tensor, value: Tensor, tree: Tree, scaling: float, window: int | None
) -> Tensor:
    # Gathered and split once: the gradient of a slice is as large as what it was cut from, and one
    # for each span made the backward pass quadratic in the pack.
    keys, values = (
        torch.split(whole.index_select(2, tree.keys), tree.key_counts, dim=2)
        for whole in (key, value)
    )
    queries = torch.split(query, tree.query_counts, dim=2)
    parts = []
    for own, seen, weighed in zip(queries, keys, values, strict=True):
        count = seen.shape[2] - own.shape[2]
        for block in torch.split(own, BLOCK, dim=2):
            count += block.shape[2]
            parts.append(
                scaled_dot_product_attention(
                    block,
                    seen[:, :, :count],
                    weighed[:, :, :count],
                    attn_mask=_causal(block.shape[2], count, window, key.device),
                    scale=scaling,
                    enable_gqa=query.shape[1] != key.shape[1],
                )
            )
    return torch.cat(parts, dim=2).transpose(1, 2)


def _causal(queries: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """What the last `queries` of `keys` positions see (queries, keys), at most `window` back."""
    offset = keys - queries
    mask = torch.ones((queries, keys), dtype=torch.bool, device=device).tril(offset)
    return mask if window is None else mask.triu(offset - window + 1)


def _variable_length(
    query: Tensor, key: Tensor, value: Tensor, tree: Tree, scaling: float, window: int | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    keys, values = (
        whole.squeeze(0).transpose(0, 1).index_select(0, tree.keys) for whole in (key, value)
    )
    output = varlen_attn(
        query.squeeze(0).transpose(0, 1).contiguous(),
        keys,
        values,
        *tree.ends,
        max(tree.query_counts),
        max(tree.key_counts),
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(output, Tensor)
    return output.unsqueeze(0)


@contextmanager
def tree_attention_in(config: Any) -> Iterator[None]:
    """Inside, models of this config attend by `tree_attention`, also when recomputed backward."""
    AttentionInterface.register(NAME, tree_attention)
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
