"""Attention over a pack: every response sees its prompt and itself, and nothing else.

Registered with transformers' attention interface, so that any decoder that goes through it can
compute a prompt once for all of its responses. The result is exact, not an approximation: no score
outside the tree is ever used. What an attention layer asks for beyond that is refused.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import AttentionInterface

from pubswap_client.policy.attention_kernels import KERNELS

NAME = "pubswap_tree"
# Arguments that say nothing about which scores there are, or what our own tree says better.
HARMLESS = frozenset(
    {
        "cache_position",
        "max_seqlen",
        "output_attentions",
        "output_hidden_states",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)

Made = TypeVar("Made")


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
    _cache: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)

    def cached(self, name: Hashable, make: Callable[[], Made]) -> Made:
        """What a kernel makes of the tree once for all layers."""
        if name not in self._cache:
            self._cache[name] = make()
        made: Made = self._cache[name]
        return made

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
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    *,
    tree: Tree | None = None,
    kernel: str = "portable",
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of queries (1, H, S, D) on keys and values (1, H_kv, S, D): (1, S, H, D).

    Raises NotImplementedError for anything that would change the scores: soft-capping, sinks,
    biases, masks, dropout. A layer that has it is not computed rightly without it.
    """
    if tree is None:
        raise NotImplementedError("its decoder does not hand the tree on to its attention layers")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    wanted = {name: value for name, value in others.items() if name not in HARMLESS}
    wanted |= {"attention_mask": attention_mask, "dropout": dropout or None}
    wanted["is_causal"] = None if is_causal else is_causal
    if unknown := sorted(name for name, value in wanted.items() if value is not None):
        raise NotImplementedError(f"its attention layers use {', '.join(unknown)}")
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    return KERNELS[kernel](query, key, value, tree, scaling, sliding_window), None


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
