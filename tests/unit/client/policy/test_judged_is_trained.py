"""The form of a response, against a definition of its own, and the text that a verifier reads."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pubswap_client.policy.groups import Group, collate
from pubswap_protocol.errors import InvalidResponses
from pubswap_protocol.tensors.response_form import ResponseForm
from pubswap_protocol.tensors.responses import (
    Response,
    ResponseRules,
    decode_responses,
    encode_responses,
)
from support.client.tokenizer_kinds import CONTROL, KINDS, MARKS

ENDS, LONGEST = (1, 3), 5
FORM = ResponseForm(ENDS, LONGEST, vocabulary=7, turns=(4,))
RULES = ResponseRules((0,), 2, FORM)
Ids = st.lists(st.integers(0, 6), min_size=1, max_size=6)


def made(tokens: list[int], donated: bool = False) -> Response:
    return Response(np.array(tokens, np.int32), np.full(len(tokens), -1, np.float32), donated)


def is_response(tokens: list[int]) -> bool:
    """One end token at most, as the last; else the longest length."""
    if len(tokens) > 5:
        return False
    ends = [index for index, token in enumerate(tokens) if token in (1, 3)]
    return ends == [len(tokens) - 1] or (not ends and len(tokens) == 5)


@given(first=Ids, second=Ids, donated=st.booleans())
def test_a_file_is_accepted_exactly_if_all_are_responses(
    first: list[int], second: list[int], donated: bool
) -> None:
    """A donated one must also be without tokens of a turn."""
    data = encode_responses((0,), [[made(first), made(second, donated)]])
    if is_response(first) and is_response(second) and not (donated and 4 in second):
        [group] = decode_responses(data, RULES)
        assert [each.tokens.tolist() for each in group] == [first, second]
    else:
        with pytest.raises(InvalidResponses):
            decode_responses(data, RULES)


@cache
def tokenizer(kind: str) -> Tokenizer:
    return KINDS[kind]()


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_the_text_judged_is_the_text_of_the_tokens_trained(kind: str, data: st.DataObject) -> None:
    """For random tokens, control tokens and marks among them, in every kind of tokenizer."""
    known = tokenizer(kind)
    end, stop = known.token_to_id("</s>"), known.token_to_id("<|end|>")
    special = [known.token_to_id(text) for text in (*CONTROL, *MARKS)]
    ids = st.one_of(st.integers(0, known.get_vocab_size() - 1), st.sampled_from(special))
    tokens = data.draw(st.lists(ids, min_size=1, max_size=12))
    form = ResponseForm((end, stop), 12, known.get_vocab_size())
    response = made(tokens)
    if form.fault(response.tokens, np.array([len(tokens)])) is not None:
        assert any(token in (end, stop) for token in tokens[:-1]) or len(tokens) < 12
        return
    trained, _ = collate([Group([5], [response] * 2, [1.0, 0.0])]).responses
    text = form.text(known, response.tokens)
    words = trained.tolist()
    words = words[:-1] if words[-1] in (end, stop) else words
    assert text == known.decode(words, skip_special_tokens=False)
    # Nothing that is trained goes unread: each control token and mark is in the text.
    for token in set(words) & set(special):
        assert text.count(known.id_to_token(token)) >= words.count(token)


def test_a_response_of_an_end_token_alone_is_empty() -> None:
    """Its text is empty, and so is never right."""
    known = tokenizer("byte level")
    end = known.token_to_id("</s>")
    form = ResponseForm((end,), 4, known.get_vocab_size())
    assert form.fault(np.array([end]), np.array([1])) is None
    assert form.text(known, np.array([end])) == ""


def test_turn_tokens_do_not_include_what_ends_a_response() -> None:
    """So every response that ends can be donated."""
    assert FORM.donatable(np.array([5, 1]))
    assert not FORM.donatable(np.array([5, 4, 1]))
