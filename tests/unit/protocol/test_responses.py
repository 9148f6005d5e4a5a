"""Encoded responses."""

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from pubswap_protocol.errors import InvalidResponses
from pubswap_protocol.tensors.response_form import ResponseForm
from pubswap_protocol.tensors.responses import (
    Response,
    ResponseFile,
    ResponseRules,
    decode_responses,
    encode_responses,
)

FORM = ResponseForm(ends=(9,), longest=4, vocabulary=10)
RULES = ResponseRules((3, 7), responses_per_prompt=2, form=FORM)


def response(*tokens: int) -> Response:
    """A response with these tokens."""
    logprobs = -np.arange(len(tokens), dtype=np.float32)
    return Response(np.array(tokens, dtype=np.int32), logprobs)


GROUPS = [[response(0, 2, 9), response(9)], [response(4, 9), response(5, 6, 7, 8).as_donated()]]


def test_a_held_file_has_few_python_objects() -> None:
    """Ten files of 100 responses add only a few objects for the garbage collector."""
    rules = replace(RULES, responses_per_prompt=50)
    data = encode_responses(rules.prompts, [[response(1, 9)] * 50] * 2)

    def objects() -> int:
        gc.collect()
        return len(gc.get_objects())

    def grown() -> int:
        before = objects()
        held = [ResponseFile(data, rules) for _ in range(10)]
        more = objects() - before
        assert len(held[0].groups()[1]) == 50
        return more

    # Take the smallest of several tries, because the rest of the process creates objects too.
    assert min(grown() for _ in range(5)) < 500


def test_responses_come_back_as_they_were_sent() -> None:
    """Tokens, log-probabilities and donated flags, in the order of prompts and responses."""
    data = encode_responses(RULES.prompts, GROUPS)
    assert len(data) <= RULES.max_bytes()
    for sent, received in zip(GROUPS, decode_responses(data, RULES), strict=True):
        for one, other in zip(sent, received, strict=True):
            assert np.array_equal(one.tokens, other.tokens)
            assert np.array_equal(one.logprobs, other.logprobs)
            assert one.donated == other.donated


@pytest.mark.parametrize("name", ["seeds", "donors"])
def test_seeds_and_donors_are_sent_only_if_a_response_has_one(name: str) -> None:
    """One of all is enough, and comes back."""
    field = name.removesuffix("s")
    one = [[GROUPS[0][0], replace(GROUPS[0][1], **{field: 6})], GROUPS[1]]
    assert name not in load(encode_responses(RULES.prompts, GROUPS))
    received = decode_responses(encode_responses(RULES.prompts, one), RULES)
    found = [getattr(response, field) for group in received for response in group]
    unset = getattr(GROUPS[0][0], field)
    assert found == [unset, 6, unset, unset]


def edited(**arrays: Any) -> bytes:
    """The valid file with some tensors replaced."""
    return save({**load(encode_responses(RULES.prompts, GROUPS)), **arrays})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (edited(prompts=np.array([3, 8], np.int32)), "asks for"),
        (edited(prompts=np.array([7, 3], np.int32)), "in this order"),
        (edited(prompts=np.array(3, np.int32)), "asks for"),
        (edited(prompts=np.array([[3, 7]], np.int32)), "asks for"),
        (edited(lengths=np.array([[3, 1, 2, 4]], np.int32)), "the shape"),
        (edited(lengths=np.array([[3, 0], [2, 4]], np.int32)), "1 to 4 tokens"),
        (edited(lengths=np.array([[5, 1], [2, 2]], np.int32)), "1 to 4 tokens"),
        (edited(lengths=np.array([[3, 1], [2, 3]], np.int32)), r"shape \(9,\)"),
        (edited(logprobs=np.zeros(9, np.float32)), r"shape \(10,\)"),
        (edited(tokens=np.zeros(11, np.int32)), r"shape \(10,\)"),
        (edited(tokens=np.full(10, 10, np.int32)), r"in 0\.\.9"),
        (edited(tokens=np.full(10, -1, np.int32)), r"in 0\.\.9"),
        (edited(logprobs=np.full(10, 0.1, np.float32)), "at most 0"),
        (edited(logprobs=np.full(10, -np.inf, np.float32)), "finite"),
        (edited(logprobs=np.full(10, np.nan, np.float32)), "finite"),
        (edited(donated=np.zeros(4, np.uint8)), "shape"),
        (edited(tokens=np.full(10, 1, np.int64)), "exactly these tensors"),
        (edited(donors=np.full((2, 2), 2**53)), "donors must be numbers from 0 to"),
        (edited(seeds=np.full((2, 2), -2)), "seeds must be numbers from -1 to"),
        (edited(name=np.zeros(1, np.uint8)), "exactly these tensors"),
        (b"nonsense" * 4, "header"),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused(data: bytes, message: str) -> None:
    """The message names the rule."""
    with pytest.raises(InvalidResponses, match=message):
        decode_responses(data, RULES)


def test_rules_are_about_one_public_step() -> None:
    """The rules for another K refuse the same file."""
    data = encode_responses(RULES.prompts, GROUPS)
    with pytest.raises(InvalidResponses, match="shape"):
        decode_responses(data, replace(RULES, responses_per_prompt=4))
