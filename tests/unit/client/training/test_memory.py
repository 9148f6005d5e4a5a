"""Measured memory of an update's activations, against the estimate."""

from typing import Any

import pytest
import torch
from transformers import Qwen3Config

from benchmarks.kept import QWEN3_1_7B, retained_bytes
from pubswap_client.policy.memory import Shape
from pubswap_client.training.memory import activation_bytes

SMALL: dict[str, Any] = {name: size // 16 for name, size in QWEN3_1_7B.items()} | {
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}
RANK = 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_estimate_is_what_a_pass_keeps_and_at_most_a_tenth_more(dtype: torch.dtype) -> None:
    """At a sixteenth of Qwen3-1.7B's width; the margin is for prompts that responses share."""
    config = Qwen3Config(**SMALL, num_hidden_layers=1)
    estimated = activation_bytes(Shape.of(config, dtype), checkpointing=False)
    counted = retained_bytes(SMALL, dtype, RANK, fused=dtype == torch.bfloat16)
    assert 1 <= estimated / counted <= 1.1


def test_fused_products_keep_each_input_once_and_in_half_precision() -> None:
    """PEFT's keep half as much again: six float32 copies of its modules' inputs."""
    fused, peft = (retained_bytes(SMALL, torch.bfloat16, RANK, fused) for fused in (True, False))
    float32_copies = 4 * (5 * SMALL["hidden_size"] + SMALL["intermediate_size"])
    assert peft - fused >= 0.8 * float32_copies
    assert fused <= 0.66 * peft
