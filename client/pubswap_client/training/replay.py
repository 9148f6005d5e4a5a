"""Right responses to public prompts, kept for the steps in which peers give too few.

With `swap.replay`, each client keeps for each public prompt the K/2 newest right responses that
came to it, its own and donated ones. In a public step, after the exchange, it adds the group's own
right ones, c of them; if c < K/2,

    min(K/2 - c, the kept ones that are not in the group)

of the wrong ones, the last first, give their places to kept ones, the newest first. So the buffer
is one more peer that `keep` asks after all others. What it gives is marked as donated: it was not
sampled from this policy.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pubswap_client.training.private_rollout import decode_flat, encode_flat
from pubswap_protocol.tensors.responses import Response

MOST_TOKENS = 1 << 22  # of the whole buffer: 32 MiB with their log-probabilities

Kept = Mapping[int, Sequence[Response]]
"""Responses by the prompt's place in the public set; the prompt that came last is the last."""


def remember(
    kept: Kept,
    prompt: int,
    group: Sequence[Response],
    rewards: Sequence[float],
    most_tokens: int = MOST_TOKENS,
) -> dict[int, list[Response]]:
    """The buffer with a group's right responses as the newest, none twice.

    Where it has more than `most_tokens`, the prompts that have not come for longest are forgotten.
    Said once more it changes nothing: a step that a kill has cut off may be made again.
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
    """A group with kept responses in the places that right ones of peers have left open."""
    filled, there = list(group), {_words(response) for response in group}
    fresh = [response for response in kept if _words(response) not in there]
    wrong = [place for place, reward in enumerate(rewards) if not reward]
    lacking = max(0, len(wrong) - (len(group) - len(group) // 2))
    for place, response in zip(reversed(wrong), fresh[:lacking], strict=False):
        filled[place] = response
    return filled


def encode_kept(kept: Kept) -> dict[str, NDArray[Any]]:
    """The buffer as arrays: the responses in a row, and the prompt of each."""
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
