"""The mismatch between the engine's and the trainer's log-probabilities."""

import math

import pytest
import torch

from pubswap_client.training.mismatch import UNUSUAL, check, measure, rounding_limit
from pubswap_protocol.errors import StaleAdapter

MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


def test_the_mean_is_over_the_mask_alone() -> None:
    """Values at padding do not count."""
    trainer = torch.tensor([[-1.0, -2.0, 9.0], [-0.5, 9.0, 9.0]])
    engine = torch.tensor([[-1.5, -2.0, 0.0], [-0.25, 0.0, 0.0]])
    assert measure(trainer, engine, MASK) == pytest.approx(0.75 / 3)


def test_equal_log_probabilities_and_empty_masks_are_no_mismatch() -> None:
    """The result is 0 and no error, even for tensors with gradients."""
    logprobs = torch.tensor([[-1.0, -2.0, -3.0]] * 2, requires_grad=True)
    for mask in (MASK, torch.zeros_like(MASK)):
        found = measure(logprobs, logprobs.detach().clone(), mask)
        assert found == 0.0
        check(found, limit=1e-9)


def test_too_large_a_mismatch_is_a_stale_adapter_with_advice() -> None:
    """From just above the limit; the message names the setting and the server's option."""
    check(0.4, limit=0.4)
    with pytest.raises(StaleAdapter, match=r"processed_logprobs.*vllm\.max_mismatch"):
        check(0.41, limit=0.4)


def test_an_unusual_mismatch_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Above 0.05 nats per token; the step is still trained."""
    check(0.05, limit=0.4)
    assert caplog.text == ""
    check(0.06, limit=0.4)
    assert "differ from the trainer's by 0.06 nats" in caplog.text


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5])
def test_rounding_to_bfloat16_stays_far_below_the_limit(temperature: float) -> None:
    """With logits up to 30 and one side rounded, unlike for another policy."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(200, 256, dtype=torch.float64, generator=generator)
    head = torch.randn(256, 4000, dtype=torch.float64, generator=generator) * 0.4
    logits = hidden @ head
    assert 25 < float(logits.abs().max()) < 40
    exact = (logits / temperature).log_softmax(-1)
    tokens = torch.multinomial(exact.exp(), 4, replacement=True, generator=generator)

    limit = rounding_limit(torch.bfloat16, temperature)
    assert limit == pytest.approx(0.25 / temperature)
    assert rounding_limit(torch.float32, temperature) == UNUSUAL

    def of(other: torch.Tensor) -> float:
        logprobs = (other.double() / temperature).log_softmax(-1)
        return measure(exact.gather(1, tokens), logprobs.gather(1, tokens), torch.ones(200, 4))

    rounded = of(hidden.bfloat16() @ head.bfloat16())
    assert 0.001 < rounded < limit / 4
    moved = head + 0.1 * torch.randn(head.shape, dtype=torch.float64, generator=generator)
    assert of(hidden @ moved) > limit


def test_not_a_number_is_a_mismatch() -> None:
    """A broken forward pass on either side is an error."""
    trainer = torch.tensor([[math.nan, -1.0, 0.0], [-1.0, 0.0, 0.0]])
    with pytest.raises(StaleAdapter):
        check(measure(trainer, torch.zeros_like(trainer), MASK), limit=0.4)
