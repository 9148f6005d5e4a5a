"""Offers to a receiver: encoding, what is refused, and how candidates are drawn."""

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from pubswap_protocol.errors import InvalidResponses
from pubswap_protocol.tensors.response_form import ResponseForm
from pubswap_protocol.tensors.responses import (
    Offer,
    Response,
    ResponseRules,
    decode_offers,
    encode_offers,
)
from pubswap_server.exchange.donation import Exchange, replaced

FORM = ResponseForm(ends=(49,), longest=5, vocabulary=50)
RULES = ResponseRules((3, 7, 5), responses_per_prompt=4, form=FORM)


def response(*tokens: int) -> Response:
    """A response with these tokens and an end."""
    logprobs = -np.arange(1, len(tokens) + 2) / 8
    return Response(np.array([*tokens, 49], np.int32), logprobs.astype(np.float32))


OWN = [response(1), response(2, 2), response(3), response(4, 4, 4)]
OFFERS = [
    Offer(OWN, (1, 3), [response(5), response(6, 6), response(7)]),
    Offer(OWN, (), []),
    Offer(OWN, (0,), [response(8)]),
]


def same(one: Response, other: Response) -> bool:
    return (
        np.array_equal(one.tokens, other.tokens)
        and np.array_equal(one.logprobs, other.logprobs)
        and one.donated == other.donated
    )


def test_offers_come_back_as_they_were_sent() -> None:
    """Own responses, places, and candidates with their donors' log-probabilities."""
    found = decode_offers(encode_offers(RULES.prompts, OFFERS), RULES)
    for sent, received in zip(OFFERS, found, strict=True):
        assert received.places == sent.places
        for mine, theirs in ((sent.own, received.own), (sent.candidates, received.candidates)):
            assert all(same(one, other) for one, other in zip(mine, theirs, strict=True))


def test_the_largest_file_of_offers_fits_its_bound() -> None:
    """All responses of full length, and all candidates for every place, with seeds and donors."""
    longest = dataclasses.replace(response(*[9] * 4095), seed=1, donor=2)
    rules = dataclasses.replace(RULES, form=dataclasses.replace(FORM, longest=4096))
    data = encode_offers(rules.prompts, [Offer([longest] * 4, (0, 1), [longest] * 6)] * 3)
    assert 0 < rules.max_bytes(candidates=3) - len(data) < 4096


def test_an_exchange_without_any_offer_is_a_file_too() -> None:
    """If nobody needs a peer's response, there are no candidates."""
    offers = [Offer(OWN, (), [])] * 3
    assert [len(o.candidates) for o in decode_offers(encode_offers((3, 7, 5), offers), RULES)] == [
        0,
        0,
        0,
    ]


def test_the_first_of_an_order_take_the_places() -> None:
    """They are marked as donated; all other responses stay where they were."""
    group = OFFERS[0].filled([2, 0, 1])
    assert [r.tokens[:-1].tolist() for r in group] == [[1], [7], [3], [5]]
    assert [r.donated for r in group] == [False, True, False, True]


def changed(**arrays: Any) -> bytes:
    """The file of offers with some tensors replaced, or omitted if None."""
    tensors = load(encode_offers(RULES.prompts, OFFERS)) | arrays
    data: bytes = save({name: array for name, array in tensors.items() if array is not None})
    return data


PLACES = load(encode_offers(RULES.prompts, OFFERS))["places"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed(prompts=np.array([3, 7, 6], np.int32)), "asks for"),
        (changed(places=None), "exactly these tensors"),
        (changed(places=PLACES[:, :3]), "must have the shape"),
        (changed(places=np.ones_like(PLACES)), "at most half"),
        (changed(places=PLACES[::-1].copy(), candidates=np.array([0, 0, 4], np.int32)), "half"),
        (changed(candidates=np.array([3, -1, 2], np.int32)), "from 0 on"),
        (changed(candidates=np.array([3, 1, 1], np.int32)), "lengths must have the shape"),
        (changed(lengths=np.ones(16, np.int32)), "tokens and logprobs must have the shape"),
        (changed(lengths=np.array([0] + 14 * [2] + [9], np.int32)), "has 1 to 5 tokens"),
        (b"", "shorter than"),
    ],
)
def test_what_the_rules_do_not_allow_is_refused(data: bytes, message: str) -> None:
    """Other prompts or tensors, too many places, fewer candidates than places, wrong lengths."""
    with pytest.raises(InvalidResponses, match=message):
        decode_offers(data, RULES)


def exchange(correct: dict[str, Any], seed: int, candidates: int | None) -> Exchange:
    prompts = range(len(next(iter(correct.values()))))
    return Exchange("keep", seed, 1, 1, list(prompts), correct, candidates=candidates)


def test_candidates_are_peers_right_responses_for_the_places_of_keep() -> None:
    """The places and their share are the same as without a choice; a small pool is offered
    entirely.
    """
    rng = np.random.default_rng(0)
    for trial in range(500):
        share, size = rng.random(), 2 * int(rng.integers(1, 5))
        correct = {name: rng.random((2, size)) < share for name in "abcd"}
        for me in correct:
            groups = exchange(correct, trial, None).choices(me)
            made = exchange(correct, trial, 3)
            assert replaced(made.choices(me), me) == replaced(groups, me)
            for place, (drawn, group) in enumerate(zip(made.draws(me), groups, strict=True)):
                pool = sum(int(v[place].sum()) for name, v in correct.items() if name != me)
                filled = [k for k, choice in enumerate(group) if choice.client != me]
                assert sorted(drawn.slots) == filled
                assert len(drawn.candidates) == (min(3 * len(filled), pool) if filled else 0)
                assert len(set(drawn.candidates)) == len(drawn.candidates)
                assert all(c.client != me for c in drawn.candidates)
                assert all(correct[c.client][place][c.index] for c in drawn.candidates)
            assert replaced(groups, me) == sum(len(drawn.slots) for drawn in made.draws(me))


def test_one_candidate_for_each_place_leaves_no_choice() -> None:
    """It equals the draw without a choice."""
    correct = {"a": np.zeros((1, 4), bool), "b": np.ones((1, 4), bool), "c": np.ones((1, 4), bool)}
    for seed in range(50):
        (drawn,) = exchange(correct, seed, 1).draws("a")
        (group,) = exchange(correct, seed, None).choices("a")
        assert set(drawn.candidates) == {choice for choice in group if choice.client != "a"}


def test_candidates_are_drawn_uniformly_and_short_enough() -> None:
    """Over many seeds, all eligible responses are offered about equally often, and others never."""
    correct = {"a": np.zeros((1, 4), bool), "b": np.ones((1, 4), bool), "c": np.ones((1, 4), bool)}
    fit = {"c": np.array([[True, False, True, False]])}
    counts: Counter[tuple[str, int]] = Counter()
    for seed in range(2000):
        made = dataclasses.replace(exchange(correct, seed, 2), donatable=fit)
        (drawn,) = made.draws("a")
        counts.update((c.client, c.index) for c in drawn.candidates)
    expected = 2000 * 4 / 6
    assert len(counts) == 6
    assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())


def test_no_damage_to_a_file_gets_past_the_rules() -> None:
    """With flipped bytes it is refused, or the decoded offers obey the rules."""
    data, rng = encode_offers(RULES.prompts, OFFERS), np.random.default_rng(4)
    refused = 0
    for _ in range(2000):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data), int(rng.integers(1, 4))):
            damaged[place] ^= 1 << int(rng.integers(8))
        try:
            offers = decode_offers(bytes(damaged), RULES)
        except InvalidResponses:
            refused += 1
            continue
        for offer in offers:
            assert len(offer.own) == 4
            assert len(offer.places) <= min(2, len(offer.candidates))
            for one in (*offer.own, *offer.candidates):
                assert 1 <= len(one.tokens) == len(one.logprobs) <= 5
                assert 0 <= one.tokens.min() <= one.tokens.max() < 50
                assert np.isfinite(one.logprobs).all()
    assert 1000 < refused < 2000
