"""Collation: end-of-sequence tokens, masks, flags."""

from collections.abc import Callable

import numpy as np
import torch

from pubswap_client.policy.groups import Group, collate
from pubswap_protocol.tensors.responses import Response

EOS = 1


def response(*tokens: int, donated: bool = False) -> Response:
    logprobs = -np.arange(1, len(tokens) + 1, dtype=np.float32)
    return Response(np.array(tokens, dtype=np.int32), logprobs, donated)


def test_rows_keep_their_tokens_and_log_probabilities_are_padded() -> None:
    """Each prompt appears once, and each response up to its end, without padding tokens."""
    groups = [
        Group([5, 6, 7], [response(8, EOS), response(9)], [1.0, 0.0]),
        Group([4], [response(8, 9, EOS), response(EOS, donated=True)], [0.0, 0.0]),
    ]
    batch = collate(groups)
    assert [prompt.tolist() for prompt in batch.prompts] == [[5, 6, 7], [4]]
    assert [each.tolist() for each in batch.responses] == [[8, 1], [9], [8, 9, 1], [1]]
    assert (batch.prompt_lengths, batch.lengths) == ([3, 1], [2, 1, 3, 1])
    assert batch.response_mask.int().tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 0, 0]]
    assert batch.behaviour.tolist() == [[-1, -2, 0], [-1, 0, 0], [-1, -2, -3], [-1, 0, 0]]
    assert batch.donated.tolist() == [False, False, False, True]
    assert (batch.rows, batch.width) == (4, 3)


def test_a_truncated_response_is_trained_whole(
    make_responses: Callable[..., list[Response]],
) -> None:
    """Without an end-of-sequence token, all tokens count."""
    batch = collate([Group([5], make_responses([12, 3], seed=0), [1.0, 0.0])])
    assert batch.response_mask.sum(dim=1).tolist() == [12, 3]


def test_advantages_follow_the_rows() -> None:
    """Row g K + k has advantage k of group g; a group of equal rewards has zeros."""
    groups = [
        Group([5], [response(8), response(9)], [1.0, 0.0]),
        Group([5], [response(8), response(9)], [1.0, 1.0]),
    ]
    batch = collate(groups)
    half = float(0.5 / np.sqrt(0.5))
    assert torch.allclose(batch.advantages, torch.tensor([half, -half, 0.0, 0.0]))
    assert batch.rewards.tolist() == [[1.0, 0.0], [1.0, 1.0]]
