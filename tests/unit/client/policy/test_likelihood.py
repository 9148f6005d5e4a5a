"""A client's choice among an offer's candidates: those that its own policy finds most likely."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from pubswap_client.daemon.session import check_possible
from pubswap_client.policy.logprobs import choose, mean_logprobs
from pubswap_client.policy.policy import Policy
from pubswap_client.settings import ClientSettings
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.responses import Offer, Response

PROMPT = [4, 13, 5, 17]


def plain(policy: Policy, response: Response) -> float:
    """Mean log-probability of a response's tokens from one whole forward pass."""
    ids = torch.tensor([[*PROMPT, *response.tokens.tolist()]])
    with torch.no_grad():
        logits = policy.model(ids).logits[0, len(PROMPT) - 1 : -1]
    found = torch.log_softmax(logits / policy.settings.grpo.temperature, dim=-1)
    return float(found[range(len(response.tokens)), response.tokens.tolist()].mean())


def test_scores_are_the_policy_s_own_per_token(
    policy: Policy, make_responses: Callable[..., list[Response]]
) -> None:
    """Neither the donors' nor sums over a response, and the same in small packs."""
    responses = make_responses([3, 12, 1, 7], seed=5)
    wanted = [plain(policy, response) for response in responses]
    for budget in (1, 20, 10_000):
        [found] = mean_logprobs(policy, [PROMPT], [responses], budget)
        assert found == pytest.approx(wanted, abs=1e-5)


def test_the_most_likely_candidates_take_the_places(
    policy: Policy, make_responses: Callable[..., list[Response]]
) -> None:
    """Own responses stay where they were in the rest of the group; ties keep the order of the
    draw.
    """
    own, candidates = make_responses([4, 5, 6, 7], seed=1), make_responses([3, 9, 5, 7, 2], seed=2)
    order = sorted(range(5), key=lambda k: -plain(policy, candidates[k]))
    for offered in (candidates, [*candidates, *candidates]):
        group = choose(policy, PROMPT, Offer(own, (1, 3), offered), 1000)
        assert group[0] is own[0] and group[2] is own[2]
        best = order[:2] if len(offered) == 5 else order[:1] * 2
        for place, taken in zip((1, 3), best, strict=True):
            assert group[place].donated
            assert np.array_equal(group[place].tokens, candidates[taken].tokens)
            assert np.array_equal(group[place].logprobs, candidates[taken].logprobs)


def test_no_forward_pass_is_made_without_a_choice(
    policy: Policy, make_responses: Callable[..., list[Response]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as many candidates as places, or none of either, no score is needed."""
    own, candidates = make_responses([4, 5, 6, 7], seed=1), make_responses([3, 9], seed=2)
    monkeypatch.setattr(policy, "hidden", None)
    assert choose(policy, PROMPT, Offer(own, (), ()), 1000) == own
    group = choose(policy, PROMPT, Offer(own, (0, 1), candidates), 1000)
    assert [r.tokens.tolist() for r in group[:2]] == [r.tokens.tolist() for r in candidates]


def test_a_sharded_client_refuses_a_run_in_which_it_must_choose() -> None:
    """At its start, with what to do; runs without that choice are accepted."""
    sharded = ClientSettings(shard=True, processes=2)
    likely = RunSettings.model_validate({"swap": {"donors": "likely"}})
    with pytest.raises(InvalidSettings, match=r"swap\.donors = 'likely'.*shard = false"):
        check_possible(likely, sharded, alone=False)
    check_possible(likely, ClientSettings(), alone=True)
    check_possible(RunSettings(), sharded, alone=False)
    check_possible(likely.model_copy(update={"method": "fedavg"}), sharded, alone=False)
