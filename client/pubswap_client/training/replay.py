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

MAX_TOKENS = 1 << 22  # of the whole buffer: 32 MiB with their log-probabilities

ReplayBuffer = Mapping[int, Sequence[Response]]
"""Responses by the prompt's index in the public set, most recently seen prompt last."""


def remember(
    buffer: ReplayBuffer, prompt: int, group: Sequence[Response], rewards: Sequence[float]
) -> dict[int, list[Response]]:
    """Return the buffer with a group's correct responses added as the newest, without duplicates.

    If it then holds more than MAX_TOKENS, the least recently seen prompts are dropped.
    Idempotent, because a step interrupted by a kill may run again.
    """
    right = [response for response, reward in zip(group, rewards, strict=True) if reward]
    newest: dict[bytes, Response] = {}
    for response in (*right, *buffer.get(prompt, ())):
        newest.setdefault(_words(response), response.anonymous().as_donated())
    updated = {key: list(responses) for key, responses in buffer.items() if key != prompt}
    if newest:
        updated[prompt] = list(newest.values())[: len(group) // 2]
    tokens = sum(len(response.tokens) for responses in updated.values() for response in responses)
    while tokens > MAX_TOKENS:
        tokens -= sum(len(response.tokens) for response in updated.pop(next(iter(updated))))
    return updated


def fill(
    group: Sequence[Response], rewards: Sequence[float], saved: Sequence[Response]
) -> list[Response]:
    """Replace a group's wrong responses by kept ones, up to K/2 correct responses."""
    filled, present = list(group), {_words(response) for response in group}
    fresh = [response for response in saved if _words(response) not in present]
    wrong = [index for index, reward in enumerate(rewards) if not reward]
    lacking = max(0, len(wrong) - (len(group) - len(group) // 2))
    for index, response in zip(reversed(wrong), fresh[:lacking], strict=False):
        filled[index] = response
    return filled


def encode_buffer(buffer: ReplayBuffer) -> dict[str, NDArray[Any]]:
    """Encode the buffer as arrays: the concatenated responses, and the prompt of each."""
    flat = [(prompt, response) for prompt, responses in buffer.items() for response in responses]
    return {
        "prompts": np.array([prompt for prompt, _ in flat], np.int64),
        **encode_flat([response for _, response in flat]),
    }


def decode_buffer(arrays: Mapping[str, NDArray[Any]]) -> dict[int, list[Response]]:
    buffer: dict[int, list[Response]] = {}
    for prompt, response in zip(arrays["prompts"].tolist(), decode_flat(arrays), strict=False):
        buffer.setdefault(prompt, []).append(response.as_donated())
    return buffer


def _words(response: Response) -> bytes:
    return response.tokens.astype(np.int32).tobytes()
