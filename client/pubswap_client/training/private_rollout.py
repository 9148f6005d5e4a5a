"""The rollout of a private step: its prompts' responses and rewards, with dead groups replaced.

A group is dead when its K rewards are all equal: its advantages are 0, and it teaches nothing. With
`grpo.resample` = n, as in DAPO's dynamic sampling (Yu et al., 2025, section 3.2), each dead group
is replaced by a live group of a fresh prompt, in up to n further draws:

    draw 0 takes b prompts; draw d = 1..n takes one for each group that is still dead, and its
    live groups replace the first dead ones.

Groups still dead after the last draw stay, so that a step always has b groups.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pubswap_client.training.metrics import mean_of
from pubswap_protocol.methods.advantages import zero_variance
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

    groups: Sequence[PrivateGroup]
    reward: float  # mean over draw 0, which resampling does not change
    sampled: int  # prompts of all draws
    replaced: int  # groups


Draw = Callable[[int, int], list[PrivateGroup]]


def sample_private(draw: Draw, count: int, draws: int, available: int) -> PrivateRollout:
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
    return PrivateRollout(groups, mean_of(rewards), sampled, replaced)
