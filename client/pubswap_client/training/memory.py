"""Estimates of what an update keeps in memory, so that a token budget can be chosen before it."""

from dataclasses import dataclass
from typing import Any

import psutil
import torch

from pubswap_client.training.policy import Policy

CPU_TOKENS = 2048  # more do not make a CPU faster, they only take more memory
GPU_TOKENS = (1024, 32_768)
USABLE = 0.6  # of the free memory: kernels, fragmentation and the estimate's error need the rest


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder that memory and work depend on."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    head_dim: int
    vocabulary: int
    bytes_per_value: int

    @classmethod
    def of(cls, config: Any, dtype: torch.dtype) -> "Shape":
        """From a transformers config."""
        text = config.get_text_config()
        heads = text.num_attention_heads
        return cls(
            hidden=text.hidden_size,
            intermediate=text.intermediate_size,
            layers=text.num_hidden_layers,
            heads=heads,
            key_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
            vocabulary=text.vocab_size,
            bytes_per_value=dtype.itemsize,
        )


def activation_bytes(shape: Shape, checkpointing: bool) -> int:
    """Bytes that one token of a micro-batch keeps until its backward pass, roughly.

    A layer keeps its two residual states and their norms, the query, key and value before and
    after rotation, the attention's output, and five tensors of the gated MLP; float32 copies for
    the norms and the adapters' inputs about double what half precision would need. With
    checkpointing only each layer's input is kept, and one layer's worth while it is recomputed.
    """
    attention = shape.head_dim * (2 * shape.heads + 2 * shape.key_heads) * 2
    layer = (6 * shape.hidden + attention + 5 * shape.intermediate) * max(shape.bytes_per_value, 4)
    if checkpointing:
        return shape.layers * shape.hidden * shape.bytes_per_value + layer
    return shape.layers * layer


def default_budget(policy: Policy, checkpointing: bool) -> int:
    """Tokens at a time: what the free memory of a GPU is estimated to hold, 2,048 on a CPU."""
    if policy.device.type != "cuda":
        return CPU_TOKENS
    free, _ = torch.cuda.mem_get_info(policy.device)
    shape = Shape.of(policy.model.config, policy.dtype)
    tokens = int(USABLE * free) // activation_bytes(shape, checkpointing)
    return max(GPU_TOKENS[0], min(GPU_TOKENS[1], tokens))


def free_bytes(device: torch.device) -> int:
    """Memory that is free on the device, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def memory_used(device: torch.device) -> int:
    """Bytes: a GPU's peak since the last call, or what this process holds of a CPU's memory."""
    if device.type == "cuda":
        peak = int(torch.cuda.max_memory_allocated(device))
        torch.cuda.reset_peak_memory_stats(device)
        return peak
    return int(psutil.Process().memory_info().rss)
