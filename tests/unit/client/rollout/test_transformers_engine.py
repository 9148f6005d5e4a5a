"""Sampling with transformers: correct log-probabilities, one prefill, determinism, ends."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from pubswap_client.policy.groups import Group, collate
from pubswap_client.policy.logprobs import response_logprobs
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.transformers_engine import (
    SamplingParameters,
    TransformersEngine,
    sample,
)
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.tensors.responses import Response

PROMPTS = ([4, 13, 5, 17], [6, 7, 8, 9, 10, 11, 17], [5, 17])
EOS = 1


def generate(
    policy: Policy,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    max_rows: int = 512,
    seed: int = 11,
    max_tokens: int = 12,
) -> list[list[Response]]:
    engine = TransformersEngine(policy, max_rows)
    return engine.generate(prompts, SamplingParameters(4, max_tokens, 0.7, seed))


def same(left: list[list[Response]], right: list[list[Response]]) -> bool:
    pairs = [(a, b) for x, y in zip(left, right, strict=True) for a, b in zip(x, y, strict=True)]
    return all(
        np.array_equal(a.tokens, b.tokens) and np.allclose(a.logprobs, b.logprobs, atol=1e-5)
        for a, b in pairs
    )


@contextmanager
def forward_shapes(policy: Policy) -> Iterator[list[tuple[int, int]]]:
    """The shapes of the ids that pass through the model within the block."""
    shapes: list[tuple[int, int]] = []
    embedding = policy.model.get_input_embeddings()
    handle = embedding.register_forward_hook(lambda _m, args, _o: shapes.append(args[0].shape))
    yield shapes
    handle.remove()


def test_reported_log_probabilities_are_the_trainers(policy: Policy) -> None:
    """They equal those of the trainer's own forward pass."""
    groups = generate(policy)
    batch = collate([Group(p, g, [0.0] * 4) for p, g in zip(PROMPTS, groups, strict=True)])
    recomputed = response_logprobs(policy, batch, 0.7, budget=1 << 20)
    assert torch.allclose(batch.behaviour, recomputed, atol=1e-5)


def test_each_prompt_goes_through_the_model_once(policy: Policy) -> None:
    """The prefill has a row per prompt, not per response; each later pass has one token per row."""
    with forward_shapes(policy) as shapes:
        groups = generate(policy)
    assert shapes[0] == (3, 7)
    assert all(width == 1 and rows <= 12 for rows, width in shapes[1:])
    longest = max(len(response.tokens) for group in groups for response in group)
    assert len(shapes) == longest


def test_finished_rows_leave_the_batch(policy: Policy) -> None:
    """Once half of the rows have ended, only the others are decoded."""
    with forward_shapes(policy) as shapes:
        groups = generate(policy, max_tokens=200)
    assert shapes[-1][0] < shapes[1][0]
    lengths = [len(response.tokens) for group in groups for response in group]
    assert len(set(lengths)) > 3


def test_the_same_seed_gives_the_same_responses(policy: Policy) -> None:
    """Bit for bit; another seed gives others."""
    first, again = generate(policy), generate(policy)
    assert same(first, again)
    assert all(
        np.array_equal(a.logprobs, b.logprobs)
        for x, y in zip(first, again, strict=True)
        for a, b in zip(x, y, strict=True)
    )
    assert not same(first, generate(policy, seed=12))


@pytest.mark.parametrize("max_rows", [1, 4, 8])
def test_the_split_into_batches_does_not_change_responses(policy: Policy, max_rows: int) -> None:
    """Draws are keyed by the response's index, so padding and batch size do not matter."""
    assert same(generate(policy, max_rows=max_rows), generate(policy))


def test_a_prompt_alone_gives_what_it_gives_among_longer_ones(policy: Policy) -> None:
    """Left padding has no effect."""
    assert same(generate(policy, [PROMPTS[0]]), generate(policy)[:1])


def test_a_response_ends_with_its_first_end_of_sequence_token(policy: Policy) -> None:
    """Nothing follows it, and only a response of full length may lack one."""
    responses = [r for group in generate(policy, max_tokens=60) for r in group]
    assert any(len(r.tokens) < 60 for r in responses)
    for response in responses:
        assert len(response.tokens) == len(response.logprobs) <= 60
        assert EOS not in response.tokens[:-1]
        assert response.tokens[-1] == EOS or len(response.tokens) == 60
        assert not response.donated
        assert (response.tokens.dtype, response.logprobs.dtype) == (np.int32, np.float32)


def test_a_response_ends_with_a_stop_token_of_the_run(policy: Policy) -> None:
    """A token that the run adds ends a response like the model's own."""
    stop = int(generate(policy, max_tokens=60)[0][0].tokens[2])
    ends = [EOS, stop]
    policy.card = policy.card.model_copy(update={"eos_token_ids": tuple(ends)})
    responses = [r for group in generate(policy, max_tokens=60) for r in group]
    assert any(response.tokens[-1] == stop for response in responses)
    for response in responses:
        assert not np.isin(response.tokens[:-1], ends).any()


def test_sampling_takes_nothing_from_torchs_global_generator(policy: Policy) -> None:
    """So rollouts and other random draws cannot affect each other."""
    before = torch.random.get_rng_state()
    generate(policy)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_tokens_are_drawn_with_their_probabilities() -> None:
    """Inverting the CDF on an even grid of draws gives each token its share, and never one of
    probability 0.
    """
    logits = torch.tensor([0.3, -float("inf"), 1.2, -0.5, -float("inf")])
    draws = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    tokens = sample(logits.expand(10_000, 5), 0.7, draws)
    shares = torch.bincount(tokens, minlength=5) / 10_000
    assert torch.allclose(shares, torch.softmax(logits / 0.7, dim=0), atol=2e-4)
    edges = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert sample(logits.expand(2, 5), 0.7, edges).tolist() == [0, 3]


def test_merged_weights_sample_the_same_responses_and_report_their_own_probabilities(
    policy: Policy,
) -> None:
    """GPUs use merged weights; on a CPU the trained weights themselves sample."""
    assert not TransformersEngine(policy).merge
    wanted, engine = generate(policy), TransformersEngine(policy)
    engine.merge = True
    found = engine.generate(PROMPTS, SamplingParameters(4, 12, 0.7, 11))
    assert same(wanted, found)
    batch = collate([Group(p, g, [0.0] * 4) for p, g in zip(PROMPTS, found, strict=True)])
    with policy.merged():
        recomputed = response_logprobs(policy, batch, 0.7, budget=1 << 20)
    assert torch.allclose(batch.behaviour, recomputed, atol=1e-5)


def test_checking_for_ended_rows_rarely_changes_no_response(policy: Policy) -> None:
    """Tokens that a row samples after its end are discarded."""
    engine = TransformersEngine(policy)
    engine.check_every = 16
    assert same(
        engine.generate(PROMPTS, SamplingParameters(4, 60, 0.7, 11)),
        generate(policy, max_tokens=60),
    )


def test_a_models_own_error_becomes_ours(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model raises in its first response is one sentence, with its words."""

    def broken(*_: object, **__: object) -> None:
        raise KeyError("no such cache")

    monkeypatch.setattr(policy.model, "forward", broken)
    with pytest.raises(InvalidSettings, match="cannot be sampled from: 'no such cache'"):
        generate(policy)
