"""Sampling parameters for vLLM, and checks of its responses."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pubswap_client.rollout.transformers_engine import SamplingParameters
from pubswap_client.rollout.vllm_sampling import (
    checked_response,
    lora_rank,
    sampling_parameters,
)
from pubswap_protocol.errors import EngineFault, InvalidSettings
from pubswap_protocol.model import ModelCard, model_card
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.response_form import ResponseForm

CardOf = Callable[[Path], ModelCard]
SAMPLING = SamplingParameters(count=4, max_tokens=12, temperature=0.7, seed=3)


@pytest.fixture
def card(tiny_qwen3: Path, card_of: CardOf) -> ModelCard:
    """The tiny model's card; its end-of-sequence token is 1."""
    return card_of(tiny_qwen3)


def form(card: ModelCard, longest: int) -> ResponseForm:
    """The form of responses up to so many tokens."""
    return ResponseForm(card.eos_token_ids, longest, card.vocabulary)


def test_all_sampling_parameters_are_explicit(card: ModelCard) -> None:
    """Nothing comes from the model's generation config, and only the card's tokens end a
    response.
    """
    asked = sampling_parameters(card, SAMPLING, 0)
    assert (asked["n"], asked["max_tokens"], asked["temperature"]) == (4, 12, 0.7)
    assert (asked["top_p"], asked["top_k"], asked["min_p"]) == (1.0, 0, 0.0)
    assert (asked["stop_token_ids"], asked["ignore_eos"]) == ([1], True)


def test_a_runs_stop_tokens_end_a_response_too(tiny_qwen3: Path, run_settings: RunSettings) -> None:
    """vLLM is told to stop at them, and responses that do are accepted."""
    card = model_card(tiny_qwen3, run_settings.lora, "tiny", None, stops=(7, 1))
    assert card.eos_token_ids == (1, 7)
    assert sampling_parameters(card, SAMPLING, 0)["stop_token_ids"] == [1, 7]
    assert checked_response([5, 6, 7], [-0.5] * 3, form(card, 9)).tokens.tolist() == [5, 6, 7]
    with pytest.raises(EngineFault):
        checked_response([5, 7, 6], [-0.5] * 3, form(card, 3))
    with pytest.raises(InvalidSettings, match=f"{card.vocabulary} is not in the vocabulary"):
        model_card(tiny_qwen3, run_settings.lora, "tiny", None, stops=(card.vocabulary,))


def test_seeds_are_a_function_of_the_seed_and_the_prompt(card: ModelCard) -> None:
    """They are distinct, and small enough that vLLM can add a response's index."""
    seeds = [
        sampling_parameters(card, replace(SAMPLING, seed=seed), prompt)["seed"]
        for seed in (1, 2, 2**64 - 1)
        for prompt in range(50)
    ]
    assert len(set(seeds)) == len(seeds)
    assert min(seeds) >= 0 and max(seeds) < 2**62
    assert seeds[0] == sampling_parameters(card, SamplingParameters(9, 9, 0.9, 1), 0)["seed"]


def test_a_temperature_that_vllm_would_change_is_refused(card: ModelCard) -> None:
    """Below 0.01 it samples at 0.01, so its log-probabilities would not be the run's."""
    with pytest.raises(InvalidSettings, match=r"0\.001"):
        sampling_parameters(card, replace(SAMPLING, temperature=0.001), 0)


@pytest.mark.parametrize("tokens", [[5, 6, 1], [5, 6, 7, 8], [1]])
def test_a_response_ends_with_its_first_end_or_at_the_limit(
    card: ModelCard, tokens: list[int]
) -> None:
    """Tokens and log-probabilities have the dtypes of the wire format."""
    response = checked_response(tokens, [-0.5] * len(tokens), form(card, 4))
    assert response.tokens.tolist() == tokens
    assert (response.tokens.dtype, response.logprobs.dtype) == (np.int32, np.float32)


@pytest.mark.parametrize(
    ("tokens", "logprobs", "message"),
    [
        ([5, 1], [-1.0], "2 tokens but 1 log-prob"),
        ([], [], "without tokens"),
        ([5] * 5, [-1.0] * 5, "5 tokens"),
        ([5, 999, 1], [-1.0] * 3, "must be in 0"),
        ([5, -7, 1], [-1.0] * 3, "must be in 0"),
        ([5, 1], [-1.0, None], "not finite"),
        ([5, 1], [-1.0, -np.inf], "not finite"),
        ([5, 6], [-1.0] * 2, "no response"),
        ([5, 1, 6, 1], [-1.0] * 4, "no response"),
    ],
)
def test_an_answer_that_cannot_be_trained_on_is_an_engine_fault(
    card: ModelCard, tokens: list[int], logprobs: list[float | None], message: str
) -> None:
    """The message says what is wrong."""
    with pytest.raises(EngineFault, match=message):
        checked_response(tokens, logprobs, form(card, 4))


def test_the_rank_is_rounded_up_to_one_of_vllm_s() -> None:
    """A rank above its largest is refused."""
    assert [lora_rank(rank) for rank in (1, 2, 8, 9, 32, 257, 512)] == [1, 8, 8, 16, 32, 320, 512]
    with pytest.raises(InvalidSettings, match="513"):
        lora_rank(513)
