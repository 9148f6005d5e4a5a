"""The rollout of a private step: its prompts' responses and rewards, with dead groups replaced.

A group is dead when its K rewards are all equal: its advantages are 0, and it teaches nothing. With
`grpo.resample` = n, as in DAPO's dynamic sampling (Yu et al., 2025, section 3.2), each dead group
is replaced by a live group of a fresh prompt, in up to n further draws:

    draw 0 takes b prompts; draw d = 1..n takes one for each group that is still dead, and its
    live groups replace the first dead ones.

Groups still dead after the last draw stay, so that a step always has b groups.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pubswap_client.policy.groups import zero_variance
from pubswap_client.training.metrics import mean_of
from pubswap_protocol.tensors.responses import Response


@dataclass(frozen=True, slots=True)
class PrivateGroup:
    """K responses to a private problem, by its index in the set, and their rewards."""

    problem: int
    responses: Sequence[Response]
    rewards: Sequence[float]

    @property
    def dead(self) -> bool:
        return bool(zero_variance(torch.tensor([self.rewards], dtype=torch.float32)).item())


@dataclass(frozen=True, slots=True)
class PrivateRollout:
    """A private step's groups (b,), and the sampling they took."""

    step: int
    groups: Sequence[PrivateGroup]
    reward: float  # mean over draw 0, which resampling does not change
    sampled: int  # prompts of all draws
    replaced: int  # groups


Draw = Callable[[int, int], list[PrivateGroup]]


def sample_private(step: int, draw: Draw, count: int, draws: int, available: int) -> PrivateRollout:
    """Sample the groups of `count` prompts, replacing dead ones in at most `draws` further draws.

    `draw(d, m)` samples m fresh prompts in draw d. At most `available` prompts, the size of the
    private set, are sampled in all, because no further prompt is fresh.
    """
    groups = draw(0, count)
    rewards = torch.tensor([group.rewards for group in groups], dtype=torch.float32)
    dead = [index for index, group in enumerate(groups) if group.dead]
    sampled, replaced = count, 0
    for number in range(1, draws + 1):
        fresh = min(len(dead), available - sampled)
        if fresh <= 0:
            break
        sampled += fresh
        for group in draw(number, fresh):
            if not group.dead:
                groups[dead.pop(0)] = group
                replaced += 1
    return PrivateRollout(step, groups, mean_of(rewards), sampled, replaced)


def encode_flat(responses: Sequence[Response]) -> dict[str, NDArray[Any]]:
    """Encode responses as their lengths and their concatenated tokens and log-probabilities."""
    no_tokens, no_logprobs = np.empty(0, np.int32), np.empty(0, np.float32)
    return {
        "lengths": np.array([len(response.tokens) for response in responses], np.int64),
        "tokens": np.concatenate([no_tokens, *(response.tokens for response in responses)]),
        "logprobs": np.concatenate([no_logprobs, *(response.logprobs for response in responses)]),
    }


def decode_flat(arrays: Mapping[str, NDArray[Any]]) -> Iterator[Response]:
    """Decode the responses of `encode_flat`; yields one empty response if there were none."""
    ends = np.cumsum(arrays["lengths"])[:-1]
    parts = (np.split(arrays[name], ends) for name in ("tokens", "logprobs"))
    return (Response(tokens, logprobs) for tokens, logprobs in zip(*parts, strict=True))


def encode_rollout(rollout: PrivateRollout) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    groups = rollout.groups
    flat = [response for group in groups for response in group.responses]
    facts = {
        "step": rollout.step,
        "problems": [group.problem for group in groups],
        "rewards": [list(group.rewards) for group in groups],
        "reward": rollout.reward,
        "sampled": rollout.sampled,
        "replaced": rollout.replaced,
    }
    return facts, encode_flat(flat)


def decode_rollout(facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> PrivateRollout:
    responses = decode_flat(arrays)
    groups = [
        PrivateGroup(problem, [next(responses) for _ in rewards], rewards)
        for problem, rewards in zip(facts["problems"], facts["rewards"], strict=True)
    ]
    return PrivateRollout(
        facts["step"], groups, facts["reward"], facts["sampled"], facts["replaced"]
    )
