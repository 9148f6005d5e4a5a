"""Public prompts chosen by the coordinator, and donors chosen by the receivers."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from pubswap_protocol.errors import Forbidden, InvalidResponses, RoundClosed
from pubswap_protocol.tensors.responses import (
    Offer,
    ResponseRules,
    decode_offers,
    decode_responses,
    encode_responses,
)
from support.coordinator.coordinator import Federation, Server, begun
from support.coordinator.places import on_sqlite

INFORMATIVE = {"prompts": "informative"}


def prompts(fed: Federation, name: str, round_: int, swap: int) -> list[int]:
    """The indices of a public step's prompts, as a member sees them."""
    entries = fed.members[name].swap_prompts(fed.run.id, round_, swap).prompts
    return [entry.index for entry in entries]


def answer(fed: Federation, round_: int, swap: int, right: dict[str, list[int]]) -> None:
    """Answer a public step for all clients, and fetch the exchanged responses."""
    for name, counts in right.items():
        body = fed.responses(name, round_, swap, counts)
        fed.members[name].submit_responses(fed.run.id, round_, swap, body)
    for name in right:
        fed.members[name].exchanged(fed.run.id, round_, swap)


def test_every_client_gets_the_prompts_that_the_first_one_got(server: Server) -> None:
    """Also if both ask concurrently, or an exchange closes in between."""
    fed = begun(server, local_steps=8, swap=INFORMATIVE)
    with ThreadPoolExecutor(2) as pool:
        first = list(pool.map(lambda name: prompts(fed, name, 1, 1), ["a", "b"] * 4))
    assert len({tuple(found) for found in first}) == 1
    seen = [first[0]]
    for swap in (2, 3, 4):
        answer(fed, 1, swap - 1, {"a": [1, 4], "b": [2, 4]})
        seen.append(prompts(fed, "b", 1, swap))
        assert prompts(fed, "a", 1, swap) == seen[-1]
    assert [prompts(fed, "a", 1, swap) for swap in (1, 2, 3, 4)] == seen
    assert len({prompt for batch in seen for prompt in batch}) == 8


@on_sqlite
def test_nobody_but_a_client_has_prompts_chosen(server: Server) -> None:
    """Nor does a client that asks for a later round."""
    fed = begun(server, swap=INFORMATIVE)
    with pytest.raises(RoundClosed):
        prompts(fed, "a", 2, 1)
    for other in (fed.members["judge"], fed.operator):
        with pytest.raises(Forbidden):
            other.swap_prompts(fed.run.id, 1, 1)
    with pytest.raises(RoundClosed, match="No prompts have been chosen"):
        fed.members["a"].submit_responses(fed.run.id, 1, 1, b"not for any prompts")
    assert len(prompts(fed, "a", 1, 1)) == 2
    with pytest.raises(InvalidResponses):
        fed.members["a"].submit_responses(fed.run.id, 1, 1, b"not for these prompts")


@on_sqlite
@pytest.mark.full
def test_prompts_whose_rewards_vary_come_back(server: Server) -> None:
    """Prompts 0 to 2 are sometimes answered right, the others never, so later rounds prefer them.

    They are a quarter of the twelve prompts, and more than two fifths of the later draws.
    """
    rounds = 12
    fed = begun(server, rounds=rounds, local_steps=2, swap={**INFORMATIVE, "period": 1})
    start = fed.adapter(0)
    asked: list[int] = []
    for round_ in range(1, rounds + 1):
        for swap in (1, 2):
            batch = prompts(fed, "a", round_, swap)
            asked += batch
            right = [2 if prompt < 3 else 0 for prompt in batch]
            answer(fed, round_, swap, {"a": right, "b": right})
        for name in ("a", "b"):
            fed.submit(name, round_, start)
        fed.wait_for(round_)
    late = asked[len(asked) // 2 :]
    assert sum(prompt < 3 for prompt in late) > 0.4 * len(late)


def test_a_receiver_is_offered_candidates_and_alpha_is_known(server: Server) -> None:
    """Its own responses, the places that `keep` would fill, and twice as many candidates."""
    fed = begun(server, swap={"donors": "likely", "candidates": 2})
    bodies = {"a": fed.responses("a", 1, 1, [0, 1]), "b": fed.responses("b", 1, 1, [4, 2])}
    for name, body in bodies.items():
        fed.members[name].submit_responses(fed.run.id, 1, 1, body)
    rules = ResponseRules.of(fed.run.model, fed.run.settings, prompts(fed, "a", 1, 1))

    def offers(name: str) -> list[Offer]:
        return decode_offers(fed.members[name].exchanged(fed.run.id, 1, 1), rules)

    mine, theirs = (decode_responses(bodies[name], rules) for name in "ab")
    found = offers("a")
    assert [len(offer.places) for offer in found] == [2, 1]
    assert [len(offer.candidates) for offer in found] == [4, 2]
    for place, offer in enumerate(found):
        assert all(
            np.array_equal(one.tokens, other.tokens)
            for one, other in zip(offer.own, mine[place], strict=True)
        )
        assert 0 not in offer.places or place == 0  # the second prompt's right response stays
        right = {theirs[place][k].tokens.tobytes() for k in range((4, 2)[place])}
        assert {candidate.tokens.tobytes() for candidate in offer.candidates} <= right
    assert [len(offer.places) + len(offer.candidates) for offer in offers("b")] == [0, 0]
    assert fed.members["a"].exchanged(fed.run.id, 1, 1) == fed.members["a"].exchanged(
        fed.run.id, 1, 1
    )
    (swap,) = fed.view().rounds[1].swaps
    assert swap.replaced_share == {"a": 3 / 8, "b": 0.0}


@on_sqlite
@pytest.mark.parametrize("donors", ["uniform", "likely"])
def test_a_donated_response_carries_its_donor_s_log_probabilities(
    server: Server, donors: str
) -> None:
    """Bit for bit, because `grpo.donor_ratio` = donor and decoupled divide by them."""
    fed = begun(server, swap={"donors": donors})
    rules = ResponseRules.of(fed.run.model, fed.run.settings, prompts(fed, "a", 1, 1))
    sent: dict[bytes, bytes] = {}
    for number, (name, right) in enumerate({"a": [0, 0], "b": [4, 3]}.items()):
        groups = decode_responses(fed.responses(name, 1, 1, right), rules)
        rng = np.random.default_rng(number)
        drawn = [
            [replace(r, logprobs=-rng.random(len(r.tokens), dtype=np.float32)) for r in group]
            for group in groups
        ]
        fed.members[name].submit_responses(fed.run.id, 1, 1, encode_responses(rules.prompts, drawn))
        if name == "b":
            sent = {r.logprobs.tobytes(): r.tokens.tobytes() for group in drawn for r in group}
    data = fed.members["a"].exchanged(fed.run.id, 1, 1)
    if donors == "likely":
        peers = [r for offer in decode_offers(data, rules) for r in offer.candidates]
    else:
        peers = [r for group in decode_responses(data, rules) for r in group if r.donated]
    assert len(peers) >= 4
    assert all(sent[r.logprobs.tobytes()] == r.tokens.tobytes() for r in peers)


@on_sqlite
def test_too_long_responses_are_no_candidates(server: Server) -> None:
    """swap.max_donated_tokens applies to candidates, too."""
    fed = begun(server, swap={"donors": "likely", "max_donated_tokens": 1})
    answer_of = {"a": fed.responses("a", 1, 1, [0, 0]), "b": fed.responses("b", 1, 1, [4, 4])}
    for name, body in answer_of.items():
        fed.members[name].submit_responses(fed.run.id, 1, 1, body)
    rules = ResponseRules.of(fed.run.model, fed.run.settings, prompts(fed, "a", 1, 1))
    offers = decode_offers(fed.members["a"].exchanged(fed.run.id, 1, 1), rules)
    assert [len(offer.places) + len(offer.candidates) for offer in offers] == [0, 0]
    (swap,) = fed.view().rounds[1].swaps
    assert swap.replaced == 0
