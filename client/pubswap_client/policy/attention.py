"""Attention over a pack: every response sees its prompt and itself, and nothing else.

Registered with transformers' attention interface, so that any decoder that uses the interface can
compute a prompt once for all of its responses. The result is exact, not an approximation: no score
outside the tree is ever used. Layers that need anything more are refused.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from pubswap_client.policy.attention_kernels import KERNELS
from pubswap_client.policy.tree import Tree

# Arguments that do not change the scores, or that the tree replaces.
HARMLESS = frozenset(
    {
        "cache_position",
        "max_seqlen",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)


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
    biases, masks, dropout. A layer that has them would be wrong without them.
    """
    if tree is None:
        raise NotImplementedError("its decoder does not pass the tree on to its attention layers")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    requested = {name: value for name, value in others.items() if name not in HARMLESS}
    requested |= {"attention_mask": attention_mask, "dropout": dropout or None}
    requested["is_causal"] = None if is_causal else is_causal
    if unknown := sorted(name for name, value in requested.items() if value is not None):
        raise NotImplementedError(f"its attention layers use {', '.join(unknown)}")
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    return KERNELS[kernel](query, key, value, tree, scaling, sliding_window), None


@contextmanager
def attending_by(attention: Callable[..., Any], decoder: Any) -> Iterator[None]:
    """Make the decoder attend by this function, also when the backward pass recomputes layers."""
    name = f"pubswap_{attention.__name__}"
    AttentionInterface.register(name, attention)
    config = decoder.config
    previous = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = previous
