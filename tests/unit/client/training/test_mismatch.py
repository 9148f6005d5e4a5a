"""The difference of the engine's and the trainer's log-probabilities."""

import math

import pytest
import torch

from pubswap_client.training.mismatch import DEFAULT_LIMIT, Mismatch, check, measure
from pubswap_protocol.errors import StaleAdapter

MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


def test_the_numbers_are_those_of_the_definition() -> None:
    """Means and maximum over the mask alone; what padding holds does not count."""
    trainer = torch.tensor([[-1.0, -2.0, 9.0], [-0.5, 9.0, 9.0]])
    engine = torch.tensor([[-1.5, -2.0, 0.0], [-0.25, 0.0, 0.0]])
    k3 = [math.exp(d) - 1 - d for d in (0.5, 0.0, -0.25)]
    found = measure(trainer, engine, MASK)
    assert found.mean_abs == pytest.approx(0.75 / 3)
    assert found.max_abs == pytest.approx(0.5)
    assert found.kl == pytest.approx(sum(k3) / 3)


def test_kl_is_that_of_the_two_distributions() -> None:
    """On many samples of the engine's distribution, the estimate is KL(engine || trainer)."""
    generator = torch.Generator().manual_seed(0)
    engine, trainer = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.4, 0.4, 0.2])
    tokens = torch.multinomial(engine, 200_000, replacement=True, generator=generator)[None]
    found = measure(trainer.log()[tokens], engine.log()[tokens], torch.ones_like(tokens))
    assert found.kl == pytest.approx(float((engine * (engine / trainer).log()).sum()), rel=0.05)


def test_equal_log_probabilities_and_empty_masks_are_no_mismatch() -> None:
    """Zero, and no error; gradients are no hindrance."""
    logprobs = torch.tensor([[-1.0, -2.0, -3.0]] * 2, requires_grad=True)
    for mask in (MASK, torch.zeros_like(MASK)):
        found = measure(logprobs, logprobs.detach().clone(), mask)
        assert found == Mismatch(0.0, 0.0, 0.0)
        check(found)


def test_too_large_a_mismatch_is_a_stale_adapter_with_advice() -> None:
    """From just above the limit on; the setting and the server's option are named."""
    check(Mismatch(DEFAULT_LIMIT, 3.0, 0.1))
    with pytest.raises(StaleAdapter, match=r"processed_logprobs.*vllm\.max_mismatch"):
        check(Mismatch(DEFAULT_LIMIT * 1.01, 3.0, 0.1))
    check(Mismatch(0.4, 3.0, 0.1), limit=0.5)


def test_not_a_number_is_a_mismatch() -> None:
    """A broken forward pass on either side is not waved through."""
    trainer = torch.tensor([[math.nan, -1.0, 0.0], [-1.0, 0.0, 0.0]])
    with pytest.raises(StaleAdapter):
        check(measure(trainer, torch.zeros_like(trainer), MASK))
