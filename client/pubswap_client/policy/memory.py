"""A decoder's sizes for memory estimates, and what an error of a device says."""

import gc
from dataclasses import dataclass
from typing import Any

import torch

# From a CPU; from CUDA graphs, Triton and cuBLAS, whose errors have no class of their own.
_NO_MEMORY = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_INTERMEDIATE = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")


@dataclass(frozen=True, slots=True)
class Shape:
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
        text = config.get_text_config()
        heads = text.num_attention_heads
        return cls(
            hidden=text.hidden_size,
            intermediate=next(
                (size for name in _INTERMEDIATE if (size := getattr(text, name, None))),
                4 * text.hidden_size,
            ),
            layers=text.num_hidden_layers,
            heads=heads,
            key_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
            vocabulary=text.vocab_size,
            bytes_per_value=dtype.itemsize,
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error says that memory ran out, on a GPU or a CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _NO_MEMORY)


def reason(error: BaseException) -> str:
    """One line of the log about a kernel that failed: a compiler's message may have hundreds."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def free_bytes(device: torch.device) -> int:
    """Free bytes of a GPU, including memory that torch holds but does not use."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def release_cached_memory() -> None:
    """Release unused GPU memory that torch holds, to other processes and to torch itself."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
