"""Packs against a plain float64 forward pass of each row, for every attention path."""

import pytest
import torch

from benchmarks.gpu.context import Context, NotRun
from benchmarks.gpu.measures.exactness import exactness
from benchmarks.gpu.plan import ATTENTION, KINDS, MODELS
from pubswap_client.policy.logprobs import linear_logprobs

SLACK = 1e-5  # for float32, where rounding alone may be almost zero


@pytest.mark.parametrize("attention", [None, *ATTENTION])
@pytest.mark.parametrize("model", MODELS)
def test_packs_are_off_by_rounding_alone(
    context: Context, model: str, attention: str | None
) -> None:
    """Log-probabilities and LoRA gradients: at most twice the error of transformers' own pass."""
    if context.device.type == "cpu" and model not in KINDS:
        pytest.skip("same architecture as another model here, where all are tiny")
    try:
        errors = exactness(context, model, attention)
    except NotRun as reason:
        pytest.skip(str(reason))
    for key, plain in errors["plain"].items():
        assert errors["packed"][key] <= 2 * plain + SLACK, (key, errors)


def test_log_probabilities_are_of_float32_logits(device: torch.device) -> None:
    """Half-precision inputs, float32 sums: an error of 1e-3 nats at most, with logits up to 40."""
    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    hidden, weight = (
        torch.randn(shape, generator=generator).to(device, dtype)
        for shape in ((40, 64), (4096, 64))
    )
    tokens = torch.randint(4096, (40,), generator=generator).to(device)
    hidden.requires_grad_()
    actual, _ = linear_logprobs(hidden, weight, None, tokens, 0.7)
    exact = hidden.detach().double().requires_grad_()
    expected = (exact @ weight.double().t() / 0.7).log_softmax(-1)
    expected = expected.gather(1, tokens[:, None]).squeeze(1)
    assert float((actual - expected).detach().abs().max()) <= 1e-3
    actual.sum().backward()
    expected.sum().backward()
    assert hidden.grad is not None
    assert exact.grad is not None
    apart = (hidden.grad.double() - exact.grad).norm() / exact.grad.norm()
    assert float(apart) <= 1e-2
