"""The number of rows sampled at a time: what fits, running out of memory, and long prompts."""

import logging
from collections.abc import Callable

import numpy as np
import pytest
import torch

from pubswap_client.policy.memory import Shape
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.memory import PREFILL_TOKENS, Lengths, rollout_bytes, rows_that_fit
from pubswap_client.rollout.transformers_engine import SamplingParameters, TransformersEngine
from pubswap_protocol.errors import InvalidSettings, OutOfMemory
from pubswap_protocol.tensors.responses import Response

PROMPTS = ([4, 13, 5, 17], [6, 7, 8, 9, 10, 11, 17], [5, 17], [9, 9, 12])
COUNT = 4
SHAPE = Shape(2048, 6144, 28, 16, 8, 128, 151_936, 2)
LONG = Lengths(prompt=1024, response=2048, group=1)
GIB = 1 << 30


def generate(engine: TransformersEngine) -> list[list[Response]]:
    return engine.generate(PROMPTS, SamplingParameters(COUNT, 12, 0.7, 11))


def same_tokens(left: list[list[Response]], right: list[list[Response]]) -> bool:
    pairs = [(a, b) for x, y in zip(left, right, strict=True) for a, b in zip(x, y, strict=True)]
    return all(np.array_equal(a.tokens, b.tokens) for a, b in pairs)


def same_bits(left: list[list[Response]], right: list[list[Response]]) -> bool:
    pairs = [(a, b) for x, y in zip(left, right, strict=True) for a, b in zip(x, y, strict=True)]
    return same_tokens(left, right) and all(
        np.array_equal(a.logprobs, b.logprobs) for a, b in pairs
    )


def failing(policy: Policy, error: Exception, most: int) -> list[int]:
    """Make decoding fail midway with more than `most` rows; returns the row counts tried."""
    tried: list[int] = []

    def fail(_: object, args: tuple[torch.Tensor]) -> None:
        rows, width = args[0].shape
        tried.append(rows)
        if width == 1 and rows > most and len(tried) % 3 == 0:
            raise error

    policy.model.get_input_embeddings().register_forward_pre_hook(fail)
    return tried


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError()])
def test_memory_that_runs_out_halves_the_rows_and_changes_no_response(
    policy: Policy, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """An engine that starts with so few rows gives the same responses; one warning is logged."""
    undisturbed, fewer = generate(TransformersEngine(policy)), TransformersEngine(policy, 8)
    wanted = generate(fewer)
    engine = TransformersEngine(policy)
    failing(policy, error, most=8)
    with caplog.at_level(logging.WARNING):
        found = generate(engine)
    assert engine.max_rows == 8
    assert same_bits(found, wanted)
    assert same_tokens(found, undisturbed)
    assert [record.message for record in caplog.records] == [
        "Memory ran out: sampling 8 responses at a time from now on."
    ]


def test_the_limit_is_remembered(policy: Policy) -> None:
    """The next call does not run out of memory again."""
    engine = TransformersEngine(policy)
    tried = failing(policy, torch.OutOfMemoryError("CUDA out of memory."), most=8)
    first = generate(engine)
    tried.clear()
    assert same_bits(first, generate(engine))
    assert max(tried) <= 8


def test_one_group_that_does_not_fit_is_sampled_in_parts(policy: Policy) -> None:
    """Draws also depend on a response's index in its group."""
    whole = generate(TransformersEngine(policy))
    engine = TransformersEngine(policy)
    failing(policy, torch.OutOfMemoryError("CUDA out of memory."), most=2)
    assert same_tokens(whole, generate(engine))
    assert engine.max_rows == 2


def test_there_is_an_end_to_halving(policy: Policy) -> None:
    """If not even one row fits, the error says what to do."""
    failing(policy, torch.OutOfMemoryError("CUDA out of memory."), most=0)
    with pytest.raises(OutOfMemory, match="max_response_tokens"):
        generate(TransformersEngine(policy))


def test_other_errors_are_not_taken_for_a_lack_of_memory(policy: Policy) -> None:
    """They are told, and the number of rows stays."""
    failing(policy, RuntimeError("shape mismatch"), most=0)
    engine = TransformersEngine(policy)
    with pytest.raises(InvalidSettings, match="shape mismatch"):
        generate(engine)
    assert engine.max_rows == 512


def test_a_process_of_a_sharded_model_does_not_retry_alone(policy: Policy) -> None:
    """The others would wait for it in the same layer forever, so it ends and says what to set."""
    policy.sharded = True
    failing(policy, torch.OutOfMemoryError("CUDA out of memory."), most=8)
    with pytest.raises(OutOfMemory, match="smaller rollout_rows"):
        generate(TransformersEngine(policy))


def test_without_memory_for_merged_weights_sampling_is_unmerged(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The merged copy only makes sampling faster."""
    wanted = generate(TransformersEngine(policy))
    engine = TransformersEngine(policy)
    engine.merge = True
    matmul = torch.Tensor.__matmul__
    calls: list[int] = []

    def exhausted(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return matmul(left, right)

    monkeypatch.setattr(torch.Tensor, "__matmul__", exhausted)
    assert same_bits(wanted, generate(engine))
    assert "No memory for merged weights" in caplog.text


def test_prompts_go_through_the_model_a_few_at_a_time(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass has a limited number of tokens, and the responses stay the same."""
    wanted = generate(TransformersEngine(policy))
    shapes: list[tuple[int, ...]] = []
    policy.model.get_input_embeddings().register_forward_pre_hook(
        lambda _module, args: shapes.append(tuple(args[0].shape))
    )
    monkeypatch.setattr("pubswap_client.rollout.transformers_engine.PREFILL_TOKENS", 21)
    assert same_tokens(wanted, generate(TransformersEngine(policy)))
    assert shapes[:2] == [(3, 7), (1, 7)]
    assert all(width == 1 for _, width in shapes[2:])


def test_prompts_of_a_model_with_other_layers_go_through_at_once(
    make_policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sliding-window caches of separate passes are not concatenated."""
    policy = make_policy("mistral", sliding_window=6)
    wanted = generate(TransformersEngine(policy))
    monkeypatch.setattr("pubswap_client.rollout.transformers_engine.PREFILL_TOKENS", 21)
    assert same_tokens(wanted, generate(TransformersEngine(policy)))


def test_as_many_rows_as_fit_are_taken_and_never_none() -> None:
    """Their estimated memory stays below the free memory."""
    for free in (8 * GIB, 20 * GIB, 70 * GIB):
        rows = rows_that_fit(SHAPE, 512, LONG, free)
        assert 1 <= rows < 512
        assert rollout_bytes(SHAPE, rows, LONG) <= free
    assert rows_that_fit(SHAPE, 64, LONG, 70 * GIB) == 64
    assert rows_that_fit(SHAPE, 512, LONG, 0) == 1


def test_the_estimate_counts_keys_and_values_and_a_bounded_prefill() -> None:
    """Twice the rows have twice the keys and values, but the prefill's memory does not grow."""
    row = 28 * 3072 * 2 * 8 * 128 * 2
    one, two = (rollout_bytes(SHAPE, rows, LONG) for rows in (256, 512))
    assert 256 * row < two - one < 1.1 * 256 * row
    assert one - 256 * row < 12 * GIB
    assert PREFILL_TOKENS // 1024 < 256
