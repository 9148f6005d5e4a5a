"""How likely a policy makes responses, by token."""

from collections.abc import Callable

import pytest
import torch

from pubswap_client.policy.logprobs import mean_logprobs
from pubswap_client.policy.policy import Policy
from pubswap_protocol.tensors.responses import Response

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
    """No sums over a response, and the same in small packs."""
    responses = make_responses([3, 12, 1, 7], seed=5)
    wanted = [plain(policy, response) for response in responses]
    for budget in (1, 20, 10_000):
        [found] = mean_logprobs(policy, [PROMPT], [responses], budget)
        assert found == pytest.approx(wanted, abs=1e-5)
