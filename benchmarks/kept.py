"""Bytes kept for each token and layer until the backward pass: counted, not estimated.

`python benchmarks/kept.py` prints them for a model's shape, with LoRA as PEFT computes it and
as we do. Only counting them with liger-kernel's layers needs a GPU.
"""

import argparse
import sys
import warnings
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AttentionInterface, Qwen3Config, Qwen3ForCausalLM

from pubswap_client.policy.liger import fuse_layers
from pubswap_client.policy.lora import fuse_products
from pubswap_client.policy.memory import Shape
from pubswap_client.training.memory import activation_bytes

QWEN3_1_7B: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
NAME = "kept_counted"


class _LikeFlash(torch.autograd.Function):
    """Saves what flash attention saves for its backward pass, and computes nothing."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = query.transpose(1, 2).clone()
        ctx.save_for_backward(query, key, value, output)
        return output


def _attention(_: Any, query: Tensor, key: Tensor, value: Tensor, *__: Any, **___: Any) -> Any:
    return _LikeFlash.apply(query, key, value), None  # type: ignore[no-untyped-call]


def retained_bytes(
    sizes: dict[str, Any], dtype: torch.dtype, rank: int, fused: bool, liger: bool = False
) -> float:
    """Bytes of one token and layer of a Qwen3 of these sizes, without what a pass keeps once."""
    per_token = []
    for layers in (1, 2):
        model = _model(Qwen3Config(**sizes, vocab_size=32, num_hidden_layers=layers), dtype, liger)
        adapted = _with_lora(model, rank, fused)
        few, many = (_retained(adapted, model.get_decoder(), tokens) for tokens in (8, 16))
        per_token.append((many - few) / 8)
    return per_token[1] - per_token[0]


def _model(config: Qwen3Config, dtype: torch.dtype, liger: bool) -> Any:
    AttentionInterface.register(NAME, _attention)
    model: Any = Qwen3ForCausalLM(config).to("cuda" if liger else "cpu", dtype)
    if liger and not fuse_layers(model):
        raise SystemExit("liger-kernel does not run here")
    model.set_attn_implementation(NAME)
    return model


def _with_lora(base: Any, rank: int, fused: bool) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        model = get_peft_model(base, LoraConfig(r=rank, target_modules="all-linear"))
    if fused:
        fuse_products(model)
    return model


def _retained(model: Any, decoder: Any, tokens: int) -> int:
    """Bytes that a forward pass keeps, counting each storage once and no parameters."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = (
            tensor  # keep it alive, so that no other storage gets its address
        )
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        ids = torch.zeros(1, tokens, dtype=torch.int64, device=model.device)
        output = decoder(ids, use_cache=False)
    assert output.last_hidden_state.requires_grad
    return sum(
        tensor.untyped_storage().nbytes()
        for address, tensor in storages.items()
        if address not in parameters
    )


def main() -> None:
    """Print a line for each way of computing LoRA, and the estimate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, default=32)
    rank = parser.parse_args().rank
    half, config = torch.bfloat16, Qwen3Config(**QWEN3_1_7B, num_hidden_layers=1)
    measured = {
        "PEFT": retained_bytes(QWEN3_1_7B, half, rank, fused=False),
        "fused": retained_bytes(QWEN3_1_7B, half, rank, fused=True),
    }
    if torch.cuda.is_available():
        measured["and liger"] = retained_bytes(QWEN3_1_7B, half, rank, fused=True, liger=True)
    measured["estimated"] = activation_bytes(Shape.of(config, half), checkpointing=False)
    lines = [f"{name:<10}{count:>12,.0f}\n" for name, count in measured.items()]
    sys.stdout.write("Bytes for each token and layer, bfloat16, Qwen3-1.7B's shape\n")
    sys.stdout.writelines(lines)


if __name__ == "__main__":
    main()
