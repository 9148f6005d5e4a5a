"""Scores from 0 to 1 through the coordinator: exchanges, evaluations and public sets."""

import pytest

from pubswap_protocol.verifiers.registry import VERIFIERS
from support.client.answers import answers
from support.coordinator.coordinator import Server, begun

HALVES = VERIFIERS.read(
    {"name": "weighted", "parts": [{"verifier": "math"}, {"verifier": "exact", "weight": 1.0}]}
)
GRPO = {"prompts_per_step": 2, "responses_per_prompt": 4, "max_response_tokens": 32}


@pytest.mark.parametrize(("correct_at", "share"), [(0.5, 0.5), (0.6, 0.0)])
def test_a_response_is_correct_from_correct_at_on(
    server: Server, correct_at: float, share: float
) -> None:
    """Half of each group is right by `math` alone, so its score is 0.5."""
    fed = begun(server, verifier=HALVES, correct_at=correct_at, grpo=GRPO)
    for name in "ab":
        body = answers(fed, name, lambda k, answer: f"{answer}.0" if k % 2 else "no")
        fed.members[name].submit_responses(fed.run.id, 1, 1, body)
    for name in "ab":
        fed.members[name].exchanged(fed.run.id, 1, 1)
    (swap,) = fed.view().rounds[1].swaps
    assert swap.correct_share == {"a": share, "b": share}
