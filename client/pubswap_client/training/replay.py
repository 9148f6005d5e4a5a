"""Replay buffer of correct responses to public prompts, for steps in which peers give too few.

With `swap.replay`, each client keeps, for each public prompt, the K/2 newest correct responses it
has seen, its own and donated ones. In a public step, after the exchange, it adds the group's c
correct responses. If c < K/2,

    min(K/2 - c, number of kept responses that are not in the group)

wrong responses, the last first, are replaced by kept ones, the newest first. So the buffer acts as
one more peer that `keep` asks after all others. Its responses are marked as donated, because they
were not sampled from this policy.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pubswap_client.training.private_rollout import decode_flat, encode_flat
from pubswap_protocol.tensors.responses import Response

MOST_TOKENS = 1 << 22  # of the whole buffer: 32 MiB with their log-probabilities

Kept = Mapping[int, Sequence[Response]]
"""Responses by the prompt's place in the public set, most recently seen prompt last."""


def remember(
    kept: Kept,
    prompt: int,
    group: Sequence[Response],
    rewards: Sequence[float],
    most_tokens: int = MOST_TOKENS,
) -> dict[int, list[Response]]:
    """Return the buffer with a group's correct responses added as the newest, without duplicates.

    If it then holds more than `most_tokens`, the least recently seen prompts are dropped.
    Idempotent, because a step interrupted by a kill may run again.
    """
    right = [response for response, reward in zip(group, rewards, strict=True) if reward]
    newest: dict[bytes, Response] = {}
    for response in (*right, *kept.get(prompt, ())):
        newest.setdefault(_words(response), response.anonymous().as_donated())
    made = {place: list(responses) for place, responses in kept.items() if place != prompt}
    if newest:
        made[prompt] = list(newest.values())[: len(group) // 2]
    tokens = sum(len(one.tokens) for responses in made.values() for one in responses)
    while tokens > most_tokens:
        tokens -= sum(len(one.tokens) for one in made.pop(next(iter(made))))
    return made


def fill(
    group: Sequence[Response], rewards: Sequence[float], kept: Sequence[Response]
) -> list[Response]:
    """Replace a group's wrong responses by kept ones, up to K/2 correct responses."""
    filled, there = list(group), {_words(response) for response in group}
    fresh = [response for response in kept if _words(response) not in there]
    wrong = [place for place, reward in enumerate(rewards) if not reward]
    lacking = max(0, len(wrong) - (len(group) - len(group) // 2))
    for place, response in zip(reversed(wrong), fresh[:lacking], strict=False):
        filled[place] = response
    return filled


def encode_kept(kept: Kept) -> dict[str, NDArray[Any]]:
    """Encode the buffer as arrays: the concatenated responses, and the prompt of each."""
    flat = [(prompt, one) for prompt, responses in kept.items() for one in responses]
    return {
        "prompts": np.array([prompt for prompt, _ in flat], np.int64),
        **encode_flat([one for _, one in flat]),
    }


def decode_kept(arrays: Mapping[str, NDArray[Any]]) -> dict[int, list[Response]]:
    kept: dict[int, list[Response]] = {}
    for prompt, response in zip(arrays["prompts"].tolist(), decode_flat(arrays), strict=False):
        kept.setdefault(prompt, []).append(response.as_donated())
    return kept


def _words(response: Response) -> bytes:
    return response.tokens.astype(np.int32).tobytes()
