"""Groups of responses, and the one batch type that private and public steps are updated on.

A batch is kept as rectangles, which are small; what is computed on are packs without padding.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pubswap_protocol.tensors.responses import Response


def zero_variance(rewards: Tensor) -> Tensor:
    """Which groups (G,) of `rewards` (G, K) have K equal rewards."""
    return (rewards == rewards[:, :1]).all(dim=1)


def group_advantages(rewards: Tensor, epsilon: float) -> Tensor:
    """A_k = (r_k - mean) / (std + epsilon) inside each group of `rewards` (G, K); std unbiased.

    A group whose rewards are all equal has advantage exactly 0, which the formula alone does not
    promise: the mean of K equal floats may be off by a rounding, and epsilon may be 0.
    """
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    advantages = centred / (rewards.std(dim=1, keepdim=True) + epsilon)
    return advantages.masked_fill(zero_variance(rewards)[:, None], 0.0)


PAD = 0  # any valid token id: padding is masked out everywhere


@dataclass(frozen=True, slots=True)
class Group:
    """K responses to one prompt, with their rewards (K,)."""

    prompt: Sequence[int]
    responses: Sequence[Response]
    rewards: Sequence[float]


@dataclass(frozen=True, slots=True)
class Batch:
    """G groups of K responses as padded tensors; B = G * K rows, group after group.

    A row is a prompt padded on the left to P tokens and a response padded on the right to T.
    """

    input_ids: Tensor  # (B, P + T)
    attention_mask: Tensor  # (B, P + T), 1 on tokens
    response_mask: Tensor  # (B, T), True up to the first end-of-sequence token, itself included
    behaviour: Tensor  # (B, T), log-probabilities under the policy that sampled the token
    rewards: Tensor  # (G, K)
    advantages: Tensor  # (B,)
    donated: Tensor  # (B,), True for a peer's response
    seeds: Tensor  # (B,), of the noise it is said to be drawn by; -1 where that is not known
    donors: Tensor  # (B,), a peer's number; 0 for nobody
    prompt_lengths: tuple[int, ...]  # (G,)
    lengths: tuple[int, ...]  # (B,)

    @property
    def rows(self) -> int:  # B
        return self.input_ids.shape[0]

    @property
    def group_size(self) -> int:  # K
        return self.rewards.shape[1]

    @property
    def width(self) -> int:  # T
        return self.response_mask.shape[1]

    def prompt(self, group: int) -> Tensor:
        """A group's prompt (P_g,), without padding."""
        before = self.input_ids.shape[1] - self.width
        row = self.input_ids[group * self.group_size]
        return row[before - self.prompt_lengths[group] : before]

    def response(self, row: int) -> Tensor:
        """A row's response (T_row,), without padding."""
        before = self.input_ids.shape[1] - self.width
        return self.input_ids[row, before : before + self.lengths[row]]


def collate(
    groups: Sequence[Group], eos_token_ids: Collection[int], advantage_epsilon: float
) -> Batch:
    """The batch of groups of equal size K, on the CPU; a private draw may have no groups."""
    rows = [(group.prompt, response) for group in groups for response in group.responses]
    lengths = [_length(response, eos_token_ids) for _, response in rows]
    before = max((len(prompt) for prompt, _ in rows), default=0)
    after = max(lengths, default=0)
    ids = np.full((len(rows), before + after), PAD, dtype=np.int64)
    mask = np.zeros((len(rows), before + after), dtype=np.int64)
    behaviour = np.zeros((len(rows), after), dtype=np.float32)
    for row, ((prompt, response), length) in enumerate(zip(rows, lengths, strict=True)):
        ids[row, before - len(prompt) : before] = prompt
        ids[row, before : before + length] = response.tokens[:length]
        mask[row, before - len(prompt) : before + length] = 1
        behaviour[row, :length] = response.logprobs[:length]
    size = len(groups[0].rewards) if groups else 0
    rewards = torch.tensor([list(group.rewards) for group in groups], dtype=torch.float32)
    rewards = rewards.view(len(groups), size)
    advantages = group_advantages(rewards, advantage_epsilon) if groups else rewards
    attention_mask = torch.from_numpy(mask)
    return Batch(
        input_ids=torch.from_numpy(ids),
        attention_mask=attention_mask,
        response_mask=attention_mask[:, before:].bool(),
        behaviour=torch.from_numpy(behaviour),
        rewards=rewards,
        advantages=advantages.flatten(),
        donated=torch.tensor([response.donated for _, response in rows], dtype=torch.bool),
        seeds=torch.tensor([response.seed for _, response in rows], dtype=torch.int64),
        donors=torch.tensor([response.donor for _, response in rows], dtype=torch.int64),
        prompt_lengths=tuple(len(group.prompt) for group in groups),
        lengths=tuple(lengths),
    )


def _length(response: Response, eos_token_ids: Collection[int]) -> int:
    """Tokens up to the first end-of-sequence token, which counts; a peer may have sent more."""
    ends = np.flatnonzero(np.isin(response.tokens, list(eos_token_ids)))
    return int(ends[0]) + 1 if len(ends) else len(response.tokens)
