"""Sampling responses: the engine interface, and an engine on plain transformers.

A response's random draws are a function of the seed and of its indices (prompt, response, token)
alone: neither padding nor the way prompts are split into batches changes them.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pubswap_client.policy.groups import PAD
from pubswap_client.policy.logprobs import token_scores
from pubswap_client.policy.policy import Policy, positions
from pubswap_protocol.tensors.responses import Response

Prompts = Sequence[Sequence[int]]


class RolloutEngine(Protocol):
    """Samples from the policy as it is at each call."""

    @abstractmethod
    def generate(
        self, prompts: Prompts, count: int, max_tokens: int, temperature: float, seed: int
    ) -> list[list[Response]]:
        """`count` responses to each prompt, of at most `max_tokens` tokens, with log-probs."""

    def close(self) -> None:
        """Give back memory and processes of its own; the engine cannot be used again."""
        return


class TransformersEngine(RolloutEngine):
    """Any Hugging Face decoder with a key-value cache, on the policy's own device."""

    def __init__(self, policy: Policy, max_rows: int = 512) -> None:
        """Sample at most `max_rows` responses at a time, but at least one prompt's."""
        self.policy = policy
        self.max_rows = max_rows

    @torch.no_grad()
    def generate(
        self,
        prompts: Prompts,
        count: int,
        max_tokens: int,
        temperature: float,
        seed: int,
        first: int = 0,
    ) -> list[list[Response]]:
        """`count` responses to each prompt, of at most `max_tokens` tokens, with log-probs.

        `first` is the first prompt's index among those that the seed is for: some of them get
        the responses that they get among all of them.
        """
        if not prompts:
            return []
        generator = torch.Generator().manual_seed(seed)
        shape = (first + len(prompts), count, max_tokens)
        draws = torch.rand(shape, generator=generator, dtype=torch.float64)[first:]
        size = max(1, self.max_rows // count)
        groups: list[list[Response]] = []
        for start in range(0, len(prompts), size):
            part = slice(start, start + size)
            groups += self._generate(prompts[part], draws[part], temperature)
        return groups

    def _generate(
        self, prompts: Prompts, draws: Tensor, temperature: float
    ) -> list[list[Response]]:
        """Responses for prompts (P) and draws (P, K, T)."""
        count = draws.shape[1]
        device = self.policy.device
        eos = torch.tensor(self.policy.card.eos_token_ids, device=device)
        draws = draws.flatten(0, 1).to(device)  # (P * K, T)
        state, logits = self._prefill(prompts, count)
        samples = _Samples(len(draws), draws.shape[1], device)
        for step in range(draws.shape[1]):
            tokens = sample(logits, temperature, draws[state.rows, step])
            samples.add(state, tokens, token_scores(logits, tokens, temperature))
            state.finished |= torch.isin(tokens, eos)
            if step + 1 == draws.shape[1] or bool(state.finished.all()):
                break
            if 2 * int(state.finished.sum()) >= len(state.rows):
                tokens = tokens[~state.finished]
                state.drop_finished()
            logits = self._decode(state, tokens)
        flat = samples.responses()
        return [flat[start : start + count] for start in range(0, len(flat), count)]

    def _prefill(self, prompts: Prompts, count: int) -> tuple["_State", Tensor]:
        """Each prompt once through the model; then its cache and logits `count` times over."""
        width = max(len(prompt) for prompt in prompts)
        ids = np.full((len(prompts), width), PAD, dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = prompt
            mask[row, width - len(prompt) :] = 1
        attention_mask = torch.from_numpy(mask).to(self.policy.device)
        output = self.policy.model(
            input_ids=torch.from_numpy(ids).to(self.policy.device),
            attention_mask=attention_mask,
            position_ids=positions(attention_mask),
            logits_to_keep=1,
            use_cache=True,
        )
        output.past_key_values.batch_repeat_interleave(count)
        state = _State(output.past_key_values, attention_mask.repeat_interleave(count, dim=0))
        return state, output.logits[:, -1].repeat_interleave(count, dim=0)

    def _decode(self, state: "_State", tokens: Tensor) -> Tensor:
        """The logits (B, V) after one more token (B,) in each row."""
        state.mask = torch.cat([state.mask, state.mask.new_ones((len(tokens), 1))], dim=1)
        output = self.policy.model(
            input_ids=tokens[:, None],
            attention_mask=state.mask,
            position_ids=state.mask.sum(dim=1, keepdim=True) - 1,
            past_key_values=state.cache,
            use_cache=True,
        )
        logits: Tensor = output.logits[:, -1]
        return logits


def sample(logits: Tensor, temperature: float, draws: Tensor) -> Tensor:
    """Tokens (B,) from softmax(logits / temperature) (B, V), by inverting its CDF at draws (B,).

    float64 keeps the sum of a large vocabulary's small probabilities exact enough.
    """
    cdf = (logits.float() / temperature).softmax(dim=-1).double().cumsum(dim=-1)
    tokens = torch.searchsorted(cdf, draws[:, None] * cdf[:, -1:], right=True)
    return tokens.squeeze(1).clamp(max=logits.shape[1] - 1)


class _State:
    """The rows that are still being decoded."""

    def __init__(self, cache: Any, mask: Tensor) -> None:
        self.cache = cache
        self.mask = mask  # (B, S)
        self.rows = torch.arange(len(mask), device=mask.device)  # (B,), of the whole batch
        self.finished = torch.zeros(len(mask), dtype=torch.bool, device=mask.device)  # (B,)

    def drop_finished(self) -> None:
        """Forget finished rows; done when half are, each copy of the cache saves half of it."""
        live = ~self.finished
        self.cache.batch_select_indices(live.nonzero().squeeze(1))
        self.mask, self.rows, self.finished = self.mask[live], self.rows[live], self.finished[live]


class _Samples:
    """The responses so far; copied from the device once, at the end."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self.tokens = torch.zeros((rows, width), dtype=torch.int32, device=device)
        self.logprobs = torch.zeros((rows, width), device=device)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)

    def add(self, state: _State, tokens: Tensor, logprobs: Tensor) -> None:
        """Append one token (B,) to each row that is not finished."""
        live = ~state.finished
        rows = state.rows[live]
        steps = self.lengths[rows]
        self.tokens[rows, steps] = tokens[live].int()
        self.logprobs[rows, steps] = logprobs[live]
        self.lengths[rows] += 1

    def responses(self) -> list[Response]:
        """One for each row, in order."""
        tokens, logprobs = self.tokens.cpu().numpy(), self.logprobs.cpu().numpy()
        return [
            Response(tokens=tokens[row, :length].copy(), logprobs=logprobs[row, :length].copy())
            for row, length in enumerate(self.lengths.tolist())
        ]
