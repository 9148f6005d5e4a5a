"""The sampling check of donated responses: seeds, donor numbers, reports and exclusion."""

import math
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from pubswap_client.operator.tables import members_table
from pubswap_protocol.digests import digest_of
from pubswap_protocol.draws import response_seed
from pubswap_protocol.errors import InvalidResponses
from pubswap_protocol.messages import DonorEvidence, Sampling, SubmitUpdate, UpdateMetrics
from pubswap_protocol.tensors.adapter import encode_adapter
from pubswap_protocol.tensors.responses import (
    NOBODY,
    UNVERIFIED,
    Response,
    ResponseRules,
    decode_responses,
    encode_responses,
)
from pubswap_server.exchange.doubts import outvoted
from pubswap_server.exchange.sampling import ENOUGH, check_seeds, doubtful
from support.coordinator.coordinator import Federation, Server, begun

Groups = list[list[Response]]
ALL = ("a", "b", "c", "d")
FALSE, TRUE = 50.0, -50.0  # nats


def federation(
    server: Server, clients: int = 4, responses: int = 4, **public_step: Any
) -> Federation:
    grpo = {"responses_per_prompt": responses}
    return begun(server, clients=clients, rounds=3, grpo=grpo, method=public_step)


def seed_of(fed: Federation, name: str, round_: int = 1, public_step: int = 1) -> int | None:
    return fed.members[name].public_step_prompts(fed.run.id, round_, public_step).sampling_seed


def decoded(fed: Federation, data: bytes, round_: int = 1) -> Groups:
    prompts = fed.members["a"].public_step_prompts(fed.run.id, round_, 1).prompts
    return decode_responses(
        data,
        ResponseRules.of(fed.run.model, fed.run.settings, [entry.index for entry in prompts]),
    )


def answers(
    fed: Federation, name: str, right: list[int], shift: int = 0, round_: int = 1
) -> tuple[Groups, bytes]:
    """Responses that claim their seeds, off by `shift`, and their encoded file."""
    seed = seed_of(fed, name, round_)
    assert seed is not None
    plain = decoded(fed, fed.responses(name, round_, 1, right), round_)
    groups = [
        [replace(one, seed=response_seed(seed, p, k) + shift) for k, one in enumerate(group)]
        for p, group in enumerate(plain)
    ]
    prompts = fed.members[name].public_step_prompts(fed.run.id, round_, 1).prompts
    return groups, encode_responses([entry.index for entry in prompts], groups)


def test_each_client_has_a_seed_of_its_own_for_each_public_step(server: Server) -> None:
    """It stays the same when asked again, differs between runs, and is None without the check."""
    fed = federation(server, clients=2, period=1)
    seeds = [seed_of(fed, name, 1, public_step) for name in "ab" for public_step in (1, 2)]
    assert None not in seeds and len(set(seeds)) == 4
    assert seeds == [seed_of(fed, name, 1, public_step) for name in "ab" for public_step in (1, 2)]
    other = federation(server, clients=2, period=1)
    assert seed_of(other, "a") not in seeds
    assert seed_of(federation(server, clients=2, sampling_check="off"), "a") is None


def test_claims_of_other_seeds_are_refused(server: Server) -> None:
    """So are claims about donors; responses without claims are accepted."""
    fed = federation(server, clients=2)
    a, run = fed.members["a"], fed.run.id
    groups, _ = answers(fed, "a", [2, 2])
    _, wrong = answers(fed, "a", [2, 2], shift=1)
    with pytest.raises(InvalidResponses, match="sampling_seed"):
        a.submit_responses(run, 1, 1, wrong)
    prompts = [entry.index for entry in a.public_step_prompts(run, 1, 1).prompts]
    named = [[replace(one, donor=7) for one in group] for group in groups]
    with pytest.raises(InvalidResponses, match="donors"):
        a.submit_responses(run, 1, 1, encode_responses(prompts, named))
    assert a.submit_responses(run, 1, 1, fed.responses("a", 1, 1, [2, 2])).status == "accepted"


@pytest.mark.parametrize("forged", [[(0, 0)], [(1, 3)], [(0, 1), (0, 3), (1, 1)]])
def test_no_single_responses_are_left_unverified(
    server: Server, forged: list[tuple[int, int]]
) -> None:
    """Forged responses could hide unchecked among honest ones, so all claim a seed or none does."""
    fed = federation(server, clients=2)
    a, run = fed.members["a"], fed.run.id
    groups, honest = answers(fed, "a", [2, 2])
    for prompt, index in forged:
        groups[prompt][index] = replace(groups[prompt][index], seed=UNVERIFIED)
    prompts = [entry.index for entry in a.public_step_prompts(run, 1, 1).prompts]
    with pytest.raises(InvalidResponses, match="of all responses to a public step, or of none"):
        a.submit_responses(run, 1, 1, encode_responses(prompts, groups))
    assert a.submit_responses(run, 1, 1, honest).status == "accepted"


def test_whose_responses_nobody_can_check_is_shown(server: Server) -> None:
    """By the member's latest responses; never in a run without the check."""
    fed, plain = federation(server, clients=2), federation(server, clients=2, sampling_check="off")

    def unverified(of: Federation) -> dict[str, bool]:
        views = of.operator.members(of.run.id).members
        return {view.name: view.unverified for view in views if view.role == "client"}

    for one in (fed, plain):
        data = one.responses("a", 1, 1, [2, 2])
        one.members["a"].submit_responses(one.run.id, 1, 1, data)
    assert unverified(fed) == {"a": True, "b": False}
    assert unverified(plain) == {"a": False, "b": False}
    shown = StringIO()
    Console(width=200, file=shown).print(members_table(fed.operator.members(fed.run.id).members))
    assert "yes, but unverified" in shown.getvalue()


def test_a_receiver_gets_seeds_and_a_number_for_each_donor(server: Server) -> None:
    """Each receiver gets other numbers; one that does not ask for seeds gets the older form."""
    fed = federation(server, clients=3)
    sent = {}
    for name, right in (("a", [0, 0]), ("b", [4, 4]), ("c", [0, 0])):
        groups, data = answers(fed, name, right)
        sent[name] = {one.seed for group in groups for one in group}
        fed.members[name].submit_responses(fed.run.id, 1, 1, data)
    numbers = {}
    for name in "ac":
        member = fed.members[name]
        flat = [r for g in decoded(fed, member.exchanged(fed.run.id, 1, 1, seeds=True)) for r in g]
        donated = [one for one in flat if one.donated]
        assert len(donated) == 4
        assert {one.seed for one in donated} <= sent["b"]
        assert {one.seed for one in flat if not one.donated} <= sent[name]
        assert all(one.donor == NOBODY for one in flat if not one.donated)
        [numbers[name]] = {one.donor for one in donated}
        plain = [one for g in decoded(fed, member.exchanged(fed.run.id, 1, 1)) for one in g]
        assert [one.tokens.tolist() for one in plain] == [one.tokens.tolist() for one in flat]
        assert {(one.seed, one.donor) for one in plain} == {(UNVERIFIED, NOBODY)}
    assert numbers["a"] != numbers["c"]


def play_round(
    fed: Federation, round_: int, doubting: Sequence[str], lying: int = 0
) -> dict[str, int]:
    """Play a round in which only `b` is right; `doubting` receivers report evidence against it.

    Each receiver claims `lying` more responses than it got. Returns how many responses each got: a
    receiver whose own are all wrong has half of its responses to each of two prompts replaced.
    """
    run, got = fed.run.id, {}
    count = fed.run.settings.grpo.responses_per_prompt
    for name in ALL:
        _, data = answers(fed, name, [count] * 2 if name == "b" else [0, 0], round_=round_)
        fed.members[name].submit_responses(run, round_, 1, data)
    for name in ALL:
        member = fed.members[name]
        flat = [
            one
            for group in decoded(fed, member.exchanged(run, round_, 1, seeds=True), round_)
            for one in group
            if one.donated
        ]
        got[name] = len(flat)
        evidence = FALSE if name in doubting else TRUE
        found = [
            DonorEvidence(number=donor, responses=len(flat) + lying, other_noise=evidence)
            for donor in {one.donor for one in flat} | {1}  # 1 is no donor's number
        ]
        data = encode_adapter(fed.run.model.layout, fed.adapter(round_))
        member.put_blob(run, data)
        metrics = UpdateMetrics(examples=10, steps=2, donors=found)
        member.submit_update(run, round_, SubmitUpdate(adapter=digest_of(data), metrics=metrics))
    fed.wait_for(round_)
    return got


def standing(fed: Federation) -> Sampling | None:
    views = {view.name: view.sampling for view in fed.operator.members(fed.run.id).members}
    assert {name for name, view in views.items() if view is not None} <= {"b"}
    return views["b"]


def test_too_few_responses_are_no_verdict_until_there_are_more(server: Server) -> None:
    """Evidence adds up over rounds; the operator sees the verdict, and nobody is excluded."""
    fed = federation(server, responses=64)
    play_round(fed, 1, doubting="acd")
    assert standing(fed) is None
    got = play_round(fed, 2, doubting="acd")
    assert standing(fed) == Sampling(doubting=3, judging=3, excluded=False)
    assert play_round(fed, 3, doubting="acd") == got
    events = fed.operator.events(fed.run.id).events
    doubted = [event.details for event in events if event.kind == "sampling doubted"]
    assert [(one["member"], one["receiver"]) for one in doubted] == [("b", n) for n in "acd"]
    assert doubted[0]["evidence"] == 2 * FALSE


@pytest.mark.parametrize(("doubting", "excluded"), [("a", False), ("ac", True)])
def test_one_receiver_alone_excludes_nobody(server: Server, doubting: str, excluded: bool) -> None:
    """Two of three do if the run's settings say so: nobody gets that donor's responses any more."""
    fed = federation(server, responses=128, sampling_check="exclude")
    assert play_round(fed, 1, doubting)["a"] == 128
    assert standing(fed) == Sampling(doubting=len(doubting), judging=3, excluded=excluded)
    got = play_round(fed, 2, doubting)
    assert got["a"] == got["c"] == got["d"] == (0 if excluded else 128)


@pytest.mark.parametrize(
    ("doubting", "judging", "out"),
    [(1, 1, False), (2, 2, True), (2, 3, True), (2, 4, False), (3, 5, True)],
)
def test_a_donor_is_outvoted_by_two_receivers_and_most_of_those_with_a_verdict(
    doubting: int, judging: int, out: bool
) -> None:
    """One alone is never enough, not even if it is the only one with a verdict."""
    assert outvoted(doubting, judging) is out


def test_a_receiver_judges_no_more_than_it_was_given(server: Server) -> None:
    """Claiming 1,000 more than it got does not bring a verdict any sooner."""
    fed = federation(server, responses=64, sampling_check="exclude")
    assert play_round(fed, 1, doubting="acd", lying=1000)["a"] == 64
    assert standing(fed) is None
    play_round(fed, 2, doubting="acd", lying=1000)
    assert standing(fed) == Sampling(doubting=3, judging=3, excluded=True)


def test_a_verdict_needs_enough_responses_and_more_than_the_limit() -> None:
    """One in a million honest donors is doubted."""
    assert doubtful(ENOUGH - 1, 1e9) is None
    assert doubtful(ENOUGH, math.log(1e6)) is False
    assert doubtful(ENOUGH, math.log(1e6) + 1e-9) is True


def test_claims_where_nobody_was_given_a_seed_are_refused() -> None:
    """A run without the check gives no seeds, so there is none to claim."""
    none = Response(np.array([1], np.int32), np.array([-1.0], np.float32))
    check_seeds([[none, none]], None)
    claimed = replace(none, seed=0)
    with pytest.raises(InvalidResponses, match="do not match the sampling_seed"):
        check_seeds([[claimed, claimed]], None)
