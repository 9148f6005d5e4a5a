"""Log-probabilities against a full softmax, row by row and without padding."""

from collections.abc import Callable

import pytest
import torch

from pubswap_client.demo.federation import MODEL
from pubswap_client.training.groups import Batch, Group, collate
from pubswap_client.training.logprobs import default_rows, response_logprobs, score_rows
from pubswap_client.training.policy import Policy
from pubswap_protocol.model import model_card
from pubswap_protocol.responses import Response
from pubswap_protocol.settings import RunSettings

TEMPERATURE = 0.7
PROMPTS = ([4, 13, 5, 17], [6, 7, 8, 9, 10, 11, 17], [5, 17])


@pytest.fixture
def groups(make_responses: Callable[..., list[Response]]) -> list[Group]:
    """Three prompts and responses of 1 to 12 tokens."""
    lengths = ([3, 12], [1, 5], [7, 2])
    return [
        Group(prompt, make_responses(sizes, seed=i), [1.0, 0.0])
        for i, (prompt, sizes) in enumerate(zip(PROMPTS, lengths, strict=True))
    ]


@pytest.fixture
def batch(groups: list[Group]) -> Batch:
    """The three groups as one batch."""
    return collate(groups, (1,), 1e-6)


def alone(policy: Policy, group: Group, response: Response) -> tuple[torch.Tensor, torch.Tensor]:
    """One unpadded sequence: the whole model output, a whole softmax, then a loop."""
    ids = torch.tensor([[*group.prompt, *response.tokens.tolist()]])
    with torch.no_grad():
        probabilities = torch.softmax(policy.model(ids).logits[0] / TEMPERATURE, dim=-1)
    first = len(group.prompt) - 1
    logprobs, entropies = [], []
    for t, token in enumerate(response.tokens.tolist()):
        p = probabilities[first + t]
        logprobs.append(p[token].log())
        entropies.append(-(p * p.log()).sum())
    return torch.stack(logprobs), torch.stack(entropies)


def test_log_probabilities_and_entropies_are_those_of_the_full_softmax(
    policy: Policy, groups: list[Group], batch: Batch
) -> None:
    """Of the temperature-scaled logits, each at the position before its token; 0 on padding."""
    scores = score_rows(policy, batch, slice(0, batch.rows), TEMPERATURE, entropy=True)
    assert scores.entropy is not None
    rows = [(group, response) for group in groups for response in group.responses]
    for row, (group, response) in enumerate(rows):
        logprobs, entropies = alone(policy, group, response)
        length = len(response.tokens)
        assert torch.allclose(scores.logprobs[row, :length], logprobs, atol=1e-5)
        assert torch.allclose(scores.entropy[row, :length], entropies, atol=1e-5)
        assert (scores.logprobs[row, length:] == 0).all()
        assert (scores.entropy[row, length:] == 0).all()


@pytest.mark.parametrize("rows", [1, 2, 4, 100])
def test_micro_batches_do_not_change_log_probabilities(
    policy: Policy, batch: Batch, rows: int
) -> None:
    """Rows at a time, with their own padding cut off, give what all rows together give."""
    whole = score_rows(policy, batch, slice(0, batch.rows), TEMPERATURE).logprobs
    found = response_logprobs(policy, batch, TEMPERATURE, rows)
    assert found.shape == (batch.rows, batch.width)
    assert not found.requires_grad
    assert torch.allclose(found, whole.detach(), atol=1e-5)


@pytest.mark.parametrize(
    ("tokens", "vocabulary", "rows"),
    [(48, 275, 64), (2048, 151_936, 1), (512, 32_000, 32), (8192, 10**9, 1)],
)
def test_micro_batches_hold_no_more_logits_than_half_a_billion(
    tokens: int, vocabulary: int, rows: int
) -> None:
    """A small model takes 64 rows at a time, a real vocabulary with long responses one."""
    settings = RunSettings.model_validate({"grpo": {"max_response_tokens": tokens}})
    card = model_card(MODEL, settings.lora, "m", None).model_copy(update={"vocabulary": vocabulary})
    assert default_rows(settings, card) == rows
