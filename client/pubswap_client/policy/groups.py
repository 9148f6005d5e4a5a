"""Groups of responses, and the batch type that private and public steps train on."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pubswap_protocol.methods.advantages import Advantage, ByStd
from pubswap_protocol.tensors.responses import Response


@dataclass(frozen=True, slots=True)
class Group:
    """K responses to one prompt, with their rewards (K,)."""

    prompt: Sequence[int]
    responses: Sequence[Response]
    rewards: Sequence[float]


@dataclass(frozen=True)
class Batch:
    """G groups of K responses on the CPU, group after group: B = G * K rows of at most T tokens."""

    prompts: Sequence[Tensor]  # G of (P_g,)
    responses: Sequence[Tensor]  # B of (T_row,), whole: see ResponseForm
    behaviour: Tensor  # (B, T), log-probabilities under the policy that sampled the token, else 0
    rewards: Tensor  # (G, K)
    advantages: Tensor  # (B,)
    donated: Tensor  # (B,), True for a peer's response
    seeds: Tensor  # (B,), of the noise it is claimed to be drawn with; -1 if unknown
    donors: Tensor  # (B,), the peer's number; 0 for none

    @property
    def rows(self) -> int:  # B
        return len(self.responses)

    @property
    def group_size(self) -> int:  # K
        return self.rewards.shape[1]

    @property
    def width(self) -> int:  # T
        return self.behaviour.shape[1]

    @cached_property
    def prompt_lengths(self) -> list[int]:  # (G,)
        return [len(prompt) for prompt in self.prompts]

    @cached_property
    def lengths(self) -> list[int]:  # (B,)
        return [len(response) for response in self.responses]

    @cached_property
    def response_mask(self) -> Tensor:
        """Mask (B, T) of the tokens."""
        return torch.arange(self.width) < torch.tensor(self.lengths)[:, None]


def collate(groups: Sequence[Group], advantage: Advantage | None = None) -> Batch:
    """Collate groups of equal size K into a batch, by default with GRPO's advantage.

    A private draw may have no groups.
    """
    flat = [response for group in groups for response in group.responses]
    longest = max((len(response.tokens) for response in flat), default=0)
    behaviour = torch.zeros(len(flat), longest)
    for row, response in zip(behaviour, flat, strict=True):
        row[: len(response.logprobs)] = torch.tensor(response.logprobs)
    size = len(groups[0].rewards) if groups else 0
    rewards = torch.tensor([list(group.rewards) for group in groups], dtype=torch.float32)
    rewards = rewards.view(len(groups), size)
    advantages = (advantage or ByStd()).of(rewards) if groups else rewards
    return Batch(
        prompts=[torch.tensor(group.prompt, dtype=torch.int64) for group in groups],
        responses=[torch.tensor(response.tokens, dtype=torch.int64) for response in flat],
        behaviour=behaviour,
        rewards=rewards,
        advantages=advantages.flatten(),
        donated=torch.tensor([response.donated for response in flat], dtype=torch.bool),
        seeds=torch.tensor([response.seed for response in flat], dtype=torch.int64),
        donors=torch.tensor([response.donor for response in flat], dtype=torch.int64),
    )
