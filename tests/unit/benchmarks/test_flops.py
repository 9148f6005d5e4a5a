"""The count of a step's floating-point operations."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.flops import (
    ModelShape,
    backward_flops,
    forward_flops,
    step_flops,
    update_flops,
)
from pubswap_protocol.model import adapter_layout
from pubswap_protocol.settings import LoraSettings
from pubswap_protocol.tensors.responses import Response

if TYPE_CHECKING:
    from pubswap_client.policy.policy import Policy

GROUPS = [(3, [2, 4]), (5, [1, 1])]


@pytest.fixture
def shape(tiny_qwen3: Path) -> ModelShape:
    """The tiny Qwen3's: hidden 16, MLP 24, 2 layers, 2 heads of 8 over 1 of keys and values."""
    return ModelShape.from_config(json.loads((tiny_qwen3 / "config.json").read_bytes()), 2)


def test_weights_equal_the_models_own(shape: ModelShape, tiny_qwen3: Path) -> None:
    """Linear layers and LoRA factors, against the shapes in the model's file."""
    from safetensors.numpy import load_file

    arrays = load_file(tiny_qwen3 / "model.safetensors")
    linear = {name: array.shape for name, array in arrays.items() if name.endswith("_proj.weight")}
    layout = adapter_layout(linear, LoraSettings(rank=2, alpha=4))
    assert shape.linear == sum(rows * columns for rows, columns in linear.values())
    assert shape.lora == sum(rows * columns for rows, columns in layout.tensors.values())
    assert shape.head == arrays["model.embed_tokens.weight"].size


def test_forward_equals_what_torch_counts(shape: ModelShape, tiny_qwen3: Path) -> None:
    """On one sequence, with all logits but for one: torch's counter sees the same products.

    It counts attention without the causal half, so that the pairs are length squared there.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_qwen3, attn_implementation="eager")
    length = 6
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(input_ids=torch.arange(length)[None])
    pairs = length * (length + 1) // 2
    masked = 4 * shape.attention_width * shape.layers * (length**2 - pairs)
    ours = forward_flops(shape, [(length, [1])], adapter=False)
    other_logits = 2 * shape.head * (length - 1)
    # Older transformers compute the angles of the rotations by a product as well.
    angles = 2 * length * model.config.head_dim // 2
    assert counter.get_total_flops() - (ours + masked + other_logits) in (0, angles)


def test_a_group_counts_its_prompt_once_and_each_pair_it_attends_to(shape: ModelShape) -> None:
    """3 + 1 + 3 and 5 + 0 + 0 inputs; by hand, the pairs of each group.

    Nothing asks for the embeddings' gradient, and so not for that of layer 0's q, k and v's input.
    """
    tokens = 7 + 5
    pairs = (1 + 2 + 3) + 4 + (4 + 5 + 6) + (1 + 2 + 3 + 4 + 5)
    of_embeddings = 16 * ((16 + 8 + 8) + 3 * 2)
    scored = 8
    assert forward_flops(shape, GROUPS, adapter=False) == (
        2 * shape.linear * tokens + 4 * 16 * 2 * pairs + 2 * shape.head * scored
    )
    assert backward_flops(shape, GROUPS) == (
        2 * shape.linear * tokens
        + 4 * shape.lora * tokens
        - 2 * of_embeddings * tokens
        + 8 * 16 * 2 * pairs
        + 2 * shape.head * scored
    )


def test_an_update_is_its_epochs_and_the_references_pass(shape: ModelShape) -> None:
    """And a step adds one forward pass for sampling."""
    forward, backward = forward_flops(shape, GROUPS), backward_flops(shape, GROUPS)
    reference = forward_flops(shape, GROUPS, adapter=False)
    assert reference < forward
    assert update_flops(shape, GROUPS, 2, reference=False) == 2 * (forward + backward)
    assert update_flops(shape, GROUPS, 2, True) == 2 * (forward + backward) + reference
    assert step_flops(shape, GROUPS, 2, True) == update_flops(shape, GROUPS, 2, True) + forward


def test_a_config_without_head_dim_and_key_value_heads_is_the_plain_transformers() -> None:
    """head_dim = hidden / heads, and as many keys as queries."""
    config = {
        "vocab_size": 10,
        "hidden_size": 12,
        "intermediate_size": 20,
        "num_hidden_layers": 1,
        "num_attention_heads": 3,
    }
    shape = ModelShape.from_config(config, lora_rank=1)
    assert (shape.key_value_heads, shape.head_dim) == (3, 4)
    assert shape.linear == 4 * 12 * 12 + 3 * 12 * 20


@pytest.mark.parametrize("half", [False, True])
def test_an_update_multiplies_what_is_counted(
    half: bool,
    shape: ModelShape,
    policy: "Policy",
    make_responses: Callable[..., list[Response]],
) -> None:
    """Torch's count of the engine's own update on packs, attention aside; its formula is above.

    In float32 and in bfloat16.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from pubswap_client.policy.groups import Group, collate
    from pubswap_client.training.memory import TokenBudget
    from pubswap_client.training.update import UpdateContext, update

    if half:
        for name, parameter in policy.model.named_parameters():
            if "lora" not in name:
                parameter.data = parameter.data.bfloat16()
    settings = policy.settings
    groups: list[tuple[int, list[int]]] = [(3, [2, 4, 7, 3]), (5, [1, 1, 6, 2])]
    batch = collate(
        [
            Group(range(3, 3 + prompt), make_responses(lengths, seed=prompt), [0.0, 1.0, 0.0, 0.0])
            for prompt, lengths in groups
        ],
    )

    def in_place(_: Any, left: torch.Size, right: torch.Size, **__: Any) -> int:
        return 2 * left[0] * left[1] * right[1]

    aten = torch.ops.aten
    counter = FlopCounterMode(display=False, custom_mapping={aten.addmm_: in_place})
    with counter:
        context = UpdateContext(policy, TokenBudget(1 << 20))
        update(context, torch.optim.AdamW(policy.trainable()), batch, [])
    counted = counter.get_flop_counts()["Global"]
    products = sum(counted.get(op, 0) for op in (aten.mm, aten.addmm, aten.addmm_))
    epochs, reference = settings.grpo.gradient_epochs, settings.grpo.kl_beta != 0
    every = update_flops(shape, groups, epochs, reference)
    pairs = sum(
        prompt * (prompt + 1) // 2 + sum((n - 1) * prompt + (n - 1) * n // 2 for n in lengths)
        for prompt, lengths in groups
    )
    attention = 4 * shape.attention_width * shape.layers * pairs
    assert products == every - attention * (3 * epochs + int(reference))
