"""Estimates of what an update keeps in memory, so that a token budget can be chosen before it."""

from dataclasses import dataclass
from typing import Any

import psutil
import torch

from pubswap_client.training.linear_logprobs import CPU_LOGITS, GPU_LOGITS
from pubswap_client.training.policy import Policy

CPU_TOKENS = 2048  # more do not make a CPU faster, they only take more memory
GPU_TOKENS = (1024, 32_768)
# glibc keeps what lies between blocks that live on: measured 1.3 to 1.8 times what is in use, and
# 2.7 to 3.3 times where layers are recomputed.
HEAP, HEAP_RECOMPUTED = 1.5, 2.5
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


def update_bytes(shape: Shape, tokens: int, checkpointing: bool, cuda: bool) -> int:
    """Bytes that an update holds at its peak beside weights and factors, `tokens` at a time."""
    logits = min(tokens * shape.vocabulary, GPU_LOGITS if cuda else CPU_LOGITS)
    # The chunk itself, and what the product with the output layer makes of it.
    used = tokens * activation_bytes(shape, checkpointing) + 6 * logits
    return used if cuda else int(used * (HEAP_RECOMPUTED if checkpointing else HEAP))


def rollout_bytes(shape: Shape, rows: int, length: int) -> int:
    """Bytes that transformers takes to sample `rows` sequences of `length` tokens at a time.

    The key-value cache, of which one layer's part is copied with each token, and a step's logits
    with their float64 distribution.
    """
    part = rows * length * 2 * shape.key_heads * shape.head_dim * shape.bytes_per_value
    return (shape.layers + 1) * part + rows * shape.vocabulary * (shape.bytes_per_value + 20)


def factor_bytes(parameters: int) -> int:
    """Bytes of an adapter that is trained, in float32: factors, their values at the round's
    beginning, gradients, and AdamW's two moments.
    """
    return 5 * 4 * parameters


def default_budget(policy: Policy, checkpointing: bool) -> int:
    """Tokens at a time: what the free memory of a GPU is estimated to hold, 2,048 on a CPU."""
    if policy.device.type != "cuda":
        return CPU_TOKENS
    free, _ = torch.cuda.mem_get_info(policy.device)
    return gpu_budget(Shape.of(policy.model.config, policy.dtype), free, checkpointing)


def gpu_budget(shape: Shape, free: int, checkpointing: bool) -> int:
    """Tokens at a time for so much free memory of a GPU."""
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
