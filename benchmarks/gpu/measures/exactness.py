"""The error of the update's numbers, compared with the error of rounding alone.

Random models are shallow; the real one, whose activations have real outliers, is whole.

The exact reference is a float64 forward pass of each row by itself, with the LoRA written out as
W x + s B (A x): neither our code nor PEFT's. Rounding alone is that pass in the policy's own dtype,
with the LoRA in float32.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.gpu.attention import attend_by
from benchmarks.gpu.context import Context
from benchmarks.gpu.models import config_of, random_model
from benchmarks.gpu.plan import REAL
from benchmarks.workload import start_adapter
from pubswap_client.policy.groups import Group, collate
from pubswap_client.policy.logprobs import score_pack
from pubswap_client.policy.packing import pack
from pubswap_client.policy.policy import Policy
from pubswap_client.policy.self_check import check_packed_path
from pubswap_protocol.model import model_card
from pubswap_protocol.tensors.adapter import Adapter
from pubswap_protocol.tensors.responses import Response

LAYERS = 4  # of the real width, because float64 is slow on a GPU and takes eight bytes
PROMPT, LENGTHS = 150, (300, 1, 40, 170)


def exactness(context: Context, model: str, attention: str | None = None) -> dict[str, Any]:
    """The errors in log-probabilities and LoRA gradients of one pack."""
    context.free()
    policy = exact_policy(context, model)
    rows = draw_rows(policy.card.vocabulary)
    with attend_by(policy, attention) as path:
        packed = packed_scores(policy, rows)
    adapter = policy.adapter()
    plain, exact = (
        written_out(context, model, adapter, rows, dtype) for dtype in (policy.dtype, torch.float64)
    )
    return {"attention": path, "packed": apart(packed, exact), "plain": apart(plain, exact)}


Rows = tuple[Tensor, list[Tensor], list[Tensor]]
"""A prompt (P,), responses (T_k,), and a coefficient for each of their tokens."""
Scored = tuple[Tensor, dict[str, Tensor]]
"""log p of all response tokens, and the gradients of their weighted sum by the factors' names."""


def exact_policy(context: Context, model: str) -> Policy:
    """The model's policy with non-zero factors, on the path that its self-check chose."""
    folder = _folder(context, model)
    settings = context.settings
    card = model_card(folder, settings.lora, "exactness", None)
    policy = Policy.load(folder, card, settings, context.device)
    check_packed_path(policy)
    policy.load_adapter(start_adapter(card.layout))
    return policy


def _folder(context: Context, model: str) -> Any:
    if model == REAL:
        return context.folder(model)
    folder = context.scratch / f"shallow-{model}"
    if not folder.exists():
        layers = 2 if context.tiny else LAYERS
        config = config_of(model, context.tiny, num_hidden_layers=layers)
        dtype = torch.bfloat16 if context.device.type == "cuda" else torch.float32
        random_model(config, context.device, dtype).save_pretrained(folder)
        source = context.folder(model)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_bytes((source / name).read_bytes())
    return folder


def draw_rows(vocabulary: int, prompt: int = PROMPT, lengths: Sequence[int] = LENGTHS) -> Rows:
    """Random tokens and coefficients."""
    generator = torch.Generator().manual_seed(3)

    def tokens(count: int) -> Tensor:
        return torch.randint(2, vocabulary, (count,), generator=generator)

    return (
        tokens(prompt),
        [tokens(length) for length in lengths],
        [torch.randn(length, generator=generator) / sum(lengths) for length in lengths],
    )


def written_out(
    context: Context, model: str, adapter: Adapter, rows: Rows, dtype: torch.dtype
) -> Scored:
    """Scores row by row with transformers' own model in this dtype, with the factors added."""
    reference = AutoModelForCausalLM.from_pretrained(
        _folder(context, model), dtype=dtype, attn_implementation="eager"
    ).to(context.device)
    lora, temperature = context.settings.lora, context.settings.grpo.temperature
    precise = torch.promote_types(dtype, torch.float32)
    factors = {
        name: torch.tensor(array, dtype=precise, device=context.device, requires_grad=True)
        for name, array in adapter.items()
    }
    reference.requires_grad_(False)
    for name, module in reference.named_modules():
        a = factors.get(f"base_model.model.{name}.lora_A.weight")
        if a is not None:
            b = factors[f"base_model.model.{name}.lora_B.weight"]
            module.register_forward_hook(_adding(a, b, lora.alpha / lora.rank))
    prompt, responses, weights = rows
    scored = []
    for response, weight in zip(responses, weights, strict=True):
        ids = torch.cat([prompt, response])[None].to(context.device)
        logits = reference(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        scores = (logits.to(precise) / temperature).log_softmax(-1)
        scores = scores.gather(1, ids[0, len(prompt) :, None]).squeeze(1)
        (scores * weight.to(scores)).sum().backward()
        scored.append(scores.detach().cpu())
    return torch.cat(scored).double(), _gradients(factors)


def _adding(a: Tensor, b: Tensor, scale: float) -> Callable[..., Tensor]:
    """A forward hook that adds s B (A x) to W x."""

    def added(_module: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        return output + (scale * (inputs[0].to(a.dtype) @ a.t() @ b.t())).to(output.dtype)

    return added


def packed_scores(policy: Policy, rows: Rows) -> Scored:
    """Scores as an update computes them: all rows in one pack."""
    for factor in policy.factors():
        factor.grad = None
    prompt, responses, weights = rows
    group = [
        Response(response.int().numpy(), np.zeros(len(response), np.float32))
        for response in responses
    ]
    batch = collate([Group(prompt.tolist(), group, [0.0] * len(group))])
    with policy.packed():
        part = pack(batch, range(len(group)), policy.device)
        logprobs = score_pack(policy, part, policy.settings.grpo.temperature).logprobs
        (logprobs * torch.cat(weights).to(policy.device)).sum().backward()
    factors = dict(zip(policy.trained_names(), policy.trainable(), strict=True))
    return logprobs.detach().double().cpu(), _gradients(factors)


def apart(actual: Scored, exact: Scored) -> dict[str, float]:
    """Largest and mean difference of log-probabilities in nats; relative one of the gradients."""
    difference = (actual[0] - exact[0]).abs()
    names = sorted(exact[1])
    actual_gradients, exact_gradients = (
        torch.cat([side[1][name].flatten() for name in names]) for side in (actual, exact)
    )
    return {
        "logprob_max": float(difference.max()),
        "logprob_mean": float(difference.mean()),
        "gradient": float((actual_gradients - exact_gradients).norm() / exact_gradients.norm()),
    }


def _gradients(factors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    gradients = {name: factor.grad for name, factor in factors.items()}
    return {name: grad.double().cpu() for name, grad in gradients.items() if grad is not None}
