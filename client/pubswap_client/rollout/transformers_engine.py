"""Rollout engine interface, and an engine on plain transformers.

A response's random draws are a function of only the seed and its indices (prompt, response, token):
neither padding nor the way prompts are split into batches changes them. They are uniform numbers at
which a CDF is inverted, or the seeds of Gumbel noise that others can check.
"""

import logging
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pubswap_client.policy.loading import refusing
from pubswap_client.policy.logprobs import token_scores
from pubswap_client.policy.memory import (
    Shape,
    free_bytes,
    is_out_of_memory,
    reason,
    release_cached_memory,
)
from pubswap_client.policy.policy import Policy, positions
from pubswap_client.rollout.gumbel import gumbel_sample
from pubswap_client.rollout.kv_cache import Cursor, cache_name, fill, is_plain, preallocate
from pubswap_client.rollout.memory import PREFILL_TOKENS, Lengths, rows_that_fit
from pubswap_client.rollout.static_step import StaticStep
from pubswap_protocol.draws import response_seed
from pubswap_protocol.errors import OutOfMemory
from pubswap_protocol.tensors.responses import Response

Prompts = Sequence[Sequence[int]]

log = logging.getLogger(__name__)

# Tokens between checks for finished rows, because each check waits for all of the GPU's work.
GPU_CHECK = 16
ALIGNED = 16  # the cache's capacity is a multiple of this, so that masks need no copy
# Largest mean total variation between a step's distributions by the plain and the static path.
STATIC_LIMIT = 0.1


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """The number of responses per prompt, and how they are drawn."""

    count: int
    max_tokens: int  # of a response
    temperature: float
    seed: int
    gumbel: bool = False  # by the noise of `gumbel.py`, if the engine can


class RolloutEngine(Protocol):
    """Samples from the policy as it is at each call."""

    @abstractmethod
    def generate(self, prompts: Prompts, sampling: SamplingParameters) -> list[list[Response]]:
        """Sample the responses to each prompt, with log-probabilities."""

    def close(self) -> None:
        """Release the engine's memory and processes. It cannot be used again."""
        return


class TransformersEngine(RolloutEngine):
    """Any Hugging Face decoder with a key-value cache, on the policy's own device.

    On a GPU it samples from a merged copy of the weights, by CUDA graphs if the model allows them,
    with as many rows at a time as fit. On a CPU it samples from the very weights that are trained.
    """

    def __init__(self, policy: Policy, max_rows: int = 512) -> None:
        """Sample at most `max_rows` responses at a time. The limit halves when memory runs out."""
        gpu = policy.device.type == "cuda" and not policy.sharded
        self.policy = policy
        self.cache_name = cache_name(policy.model)
        self.max_rows = max_rows
        self.merge = gpu
        self.static = gpu
        self.fused = gpu and find_spec("triton") is not None
        self.graphs = gpu
        self.check_every = GPU_CHECK if gpu else 1  # tokens
        # Drop finished rows when this share of them is left. A GPU copies a cache in milliseconds.
        self.keep = 0.75 if gpu else 0.5
        self._compared = False

    @torch.no_grad()
    def generate(
        self, prompts: Prompts, sampling: SamplingParameters, first: int = 0
    ) -> list[list[Response]]:
        """Sample the responses to each prompt, with log-probabilities.

        `first` is the first prompt's index among all prompts of the seed. A part of them gets the
        same responses as in the whole. Raises OutOfMemory if not even one response fits, and
        InvalidSettings if the model's own code fails.
        """
        if not prompts:
            return []
        draws = _draws(first + len(prompts), sampling)[first:]
        previous = self.max_rows
        architecture = self.policy.card.architecture
        with refusing(f"{architecture} cannot be sampled from"), self._merged():
            fitting = self._fitting(prompts, draws)
            groups = self._in_parts(prompts, draws, sampling.temperature, fitting)
        if self.max_rows < previous:
            log.warning(
                "Memory ran out: sampling %d responses at a time from now on.", self.max_rows
            )
        return groups

    @contextmanager
    def _merged(self) -> Iterator[None]:
        """Inside, sample from a merged copy of the weights, if it is wanted and there is room."""
        with ExitStack() as stack:
            try:
                if self.merge:
                    stack.enter_context(self.policy.merged())
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self.merge = False
                log.warning("No memory for merged weights: sampling without them, which is slower.")
            yield

    def _fitting(self, prompts: Prompts, draws: Tensor) -> int:
        """Rows of (P, K, T) that a GPU's free memory is estimated to hold; all on a CPU.

        Also all for a sharded model, because its processes must take equally many at a time.
        """
        rows = min(draws[..., 0].numel(), self.max_rows)
        if self.policy.device.type != "cuda" or self.policy.sharded:
            return rows
        shape = Shape.of(self.policy.model.config, self.policy.dtype)
        longest = max(len(prompt) for prompt in prompts)
        lengths = Lengths(longest, response=draws.shape[2], group=draws.shape[1])
        return rows_that_fit(shape, rows, lengths, free_bytes(self.policy.device))

    def _in_parts(
        self, prompts: Prompts, draws: Tensor, temperature: float, fitting: int
    ) -> list[list[Response]]:
        """Responses for prompts (P) and draws (P, K, T): all at once, or one part after another."""
        count, rows = draws.shape[1], min(self.max_rows, fitting)
        if len(prompts) * count <= rows:
            try:
                return self._generate(prompts, draws, temperature)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            # Only here, after the handler, is the attempt's memory free.
            self._halve(len(prompts) * count)
            rows = self.max_rows
        if len(prompts) > 1:
            size = max(1, rows // count)
            parts = [slice(start, start + size) for start in range(0, len(prompts), size)]
            return [
                group
                for part in parts
                for group in self._in_parts(prompts[part], draws[part], temperature, fitting)
            ]
        parted = [
            self._in_parts(prompts, part, temperature, fitting)[0]
            for part in torch.split(draws, rows, dim=1)
        ]
        return [[response for part in parted for response in part]]

    def _halve(self, rows: int) -> None:
        """Sample half as many rows at a time from now on. Raises OutOfMemory if it cannot."""
        if self.policy.sharded:
            # The other processes wait in the layer that we did not finish, so we cannot retry.
            raise OutOfMemory(
                f"Memory ran out while a sharded model sampled {self.max_rows} rows at a time. "
                "Set a smaller rollout_rows and start again: training continues at this step."
            )
        if rows == 1:
            raise OutOfMemory(
                "Memory runs out while one response is sampled. Use a machine with more memory, "
                "engine = 'vllm-server' with vLLM elsewhere, or shorten grpo.max_response_tokens "
                "in the run."
            )
        self.max_rows = rows // 2
        release_cached_memory()

    def _generate(
        self, prompts: Prompts, draws: Tensor, temperature: float
    ) -> list[list[Response]]:
        """Responses for prompts (P) and draws (P, K, T), all at once."""
        count, width = draws.shape[1:]
        device = self.policy.device
        eos = torch.tensor(self.policy.card.eos_token_ids, device=device)
        draws = draws.flatten(0, 1).to(device)  # (P * K, T)
        state, logits = self._prefill(prompts, count, width)
        ends = torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
        ends = ends.repeat_interleave(count)  # (P * K,), the position of a prompt's last token
        tokens_of_all = torch.zeros(draws.shape, dtype=torch.int32, device=device)
        logprobs_of_all = torch.zeros(draws.shape, device=device)
        for step in range(width):
            drawn = draws[state.rows, step]
            if drawn.is_floating_point():
                tokens = sample(logits, temperature, drawn)
            else:
                tokens = gumbel_sample(logits, temperature, drawn, ends[state.rows] + step)
            tokens_of_all[state.rows, step] = tokens.int()
            logprobs_of_all[state.rows, step] = token_scores(logits, tokens, temperature)
            state.finished |= (tokens[:, None] == eos).any(dim=1)  # isin would wait for the device
            if step + 1 == width:
                break
            if (step + 1) % self.check_every == 0:
                live = int((~state.finished).sum())
                if live == 0:
                    break
                if live <= self.keep * len(tokens):
                    tokens = tokens[~state.finished]
                    state.drop_finished()
            logits = self._decode(state, tokens)
        flat = _responses(tokens_of_all, logprobs_of_all, self.policy.card.eos_token_ids)
        return [flat[start : start + count] for start in range(0, len(flat), count)]

    def _prefill(self, prompts: Prompts, count: int, room: int) -> tuple["_State", Tensor]:
        """Run each prompt through the model once, then repeat its cache and logits `count` times.

        The cache has room for `room` more tokens. At most PREFILL_TOKENS go through at a time.
        """
        ids, mask = _left_padded(prompts, self.policy.device)
        rows, width = len(prompts) * count, ids.shape[1]
        size = max(1, PREFILL_TOKENS // width)
        cache, logits = self._prompt_pass(ids[:size], mask[:size])
        if size < len(ids) and not is_plain(cache):
            # The caches of such layers cannot be joined, so run all prompts at once.
            size = len(ids)
            cache, logits = self._prompt_pass(ids, mask)
        cursor, parts = Cursor(width), [logits]
        capacity = -(-(width + room) // ALIGNED) * ALIGNED
        preallocate(cache, count, rows, capacity, cursor)
        for start in range(size, len(ids), size):
            part = slice(start, start + size)
            of_part, logits = self._prompt_pass(ids[part], mask[part])
            parts.append(logits)
            fill(cache, slice(start * count, (start + size) * count), of_part, count)
        mask = torch.nn.functional.pad(mask, (0, capacity - width), value=1)
        mask = mask.repeat_interleave(count, dim=0)
        state = _State(cache, cursor, mask, width - mask[:, :width].sum(dim=1, keepdim=True))
        return state, torch.cat(parts).repeat_interleave(count, dim=0)

    def _prompt_pass(self, ids: Tensor, mask: Tensor) -> tuple[Any, Tensor]:
        """The cache of padded prompts (P, T), and the logits (P, V) of their next tokens."""
        output = self.policy.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions(mask),
            logits_to_keep=1,
            use_cache=True,
        )
        return getattr(output, self.cache_name), output.logits[:, -1]

    def _decode(self, state: "_State", tokens: Tensor) -> Tensor:
        """The logits (B, V) after one more token (B,) in each row."""
        if self.static and not self._compared:
            self._compare(state, tokens)
        return self._static_decode(state, tokens) if self.static else self._plain(state, tokens)

    def _plain(self, state: "_State", tokens: Tensor) -> Tensor:
        output = self.policy.model(
            input_ids=tokens[:, None],
            attention_mask=state.mask[:, : state.cursor.length + 1],
            position_ids=state.positions,
            use_cache=True,
            **{self.cache_name: state.cache},
        )
        state.cursor.length += 1
        logits: Tensor = output.logits[:, -1]
        return logits

    def _static_decode(self, state: "_State", tokens: Tensor) -> Tensor:
        step = state.static_step
        if step is not None and state.cursor.length < step.window:
            return step(tokens)
        state.static_step = step = None  # frees the old graph's memory for the new one
        step = state.static_step = self._new_step(state)
        return self._recorded(step, tokens) if self.graphs else step(tokens)

    def _new_step(self, state: "_State") -> StaticStep:
        return StaticStep(
            model=self.policy.model,
            cache=state.cache,
            cursor=state.cursor,
            mask=state.mask,
            positions=state.positions,
            fused=self.fused,
        )

    def _recorded(self, step: StaticStep, tokens: Tensor) -> Tensor:
        """Run the step and record it for replay, if it can be recorded; returns its logits."""
        logits = None
        try:
            logits = step.unwaiting(tokens)
            step.record()
        except Exception as error:  # CUDA's, torch's, or a model's that waits for the device
            if is_out_of_memory(error):
                raise
            self.graphs = False
            log.warning("CUDA graphs cannot be used; sampling without them: %s", reason(error))
        return step(tokens) if logits is None else logits

    def _compare(self, state: "_State", tokens: Tensor) -> None:
        """Leave the fused kernel, or the static path, if the model's probabilities differ there.

        All paths write the token to the same place, and the decode step that follows does too.
        """
        self._compared = True
        attention = self.policy.model.config.get_text_config()._attn_implementation
        if attention != "sdpa" or not is_plain(state.cache):
            self.static = False
            log.info("This model's attention is not plain: sampling without CUDA graphs.")
            return
        length = state.cursor.length
        plain = self._plain(state, tokens).float().softmax(dim=1)
        state.cursor.length = length
        fault = self._fault(state, tokens, plain)
        if fault and self.fused:
            self.fused = False
            log.warning("Sampling without the fused attention kernel: %s.", fault)
            fault = self._fault(state, tokens, plain)
        if fault:
            self.static = False
            log.warning("Sampling without static shapes and CUDA graphs: %s.", fault)

    def _fault(self, state: "_State", tokens: Tensor, plain: Tensor) -> str:
        """Why the static step cannot replace the plain one, whose probabilities are given (B, V).

        Empty if it can.
        """
        length = state.cursor.length
        try:
            step = self._new_step(state)
            change = (plain - step(tokens).float().softmax(dim=1)).abs().sum(dim=1).mean() / 2
            return "" if change <= STATIC_LIMIT else f"probabilities differ by {change:.2g}"
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return reason(error)
        finally:
            state.cursor.length = length


def sample(logits: Tensor, temperature: float, draws: Tensor) -> Tensor:
    """Tokens (B,) from softmax(logits / temperature) (B, V), by inverting its CDF at draws (B,).

    float64 keeps the sum of a large vocabulary's small probabilities exact enough.
    """
    cdf = (logits.float() / temperature).softmax(dim=-1).double().cumsum(dim=-1)
    tokens = torch.searchsorted(cdf, draws[:, None] * cdf[:, -1:], right=True)
    return tokens.squeeze(1).clamp(max=logits.shape[1] - 1)


def _draws(prompts: int, sampling: SamplingParameters) -> Tensor:
    """Uniform numbers (P, K, T) in 0..1, or each response's seed, the same for all its tokens."""
    shape = prompts, sampling.count, sampling.max_tokens
    if not sampling.gumbel:
        generator = torch.Generator().manual_seed(sampling.seed)
        return torch.rand(shape, generator=generator, dtype=torch.float64)
    responses = range(sampling.count)
    seeds = [[response_seed(sampling.seed, p, k) for k in responses] for p in range(prompts)]
    return torch.tensor(seeds)[..., None].expand(shape)


@dataclass
class _State:
    """The rows that are still being decoded."""

    cache: Any
    cursor: Cursor
    mask: Tensor  # (B, S), with room for all tokens: 0 on the prompt's padding
    padding: Tensor  # (B, 1), tokens of padding
    static_step: StaticStep | None = None

    def __post_init__(self) -> None:
        count, device = len(self.mask), self.mask.device
        self.rows = torch.arange(count, device=device)  # (B,), their indices in the whole batch
        self.finished = torch.zeros(count, dtype=torch.bool, device=device)  # (B,)

    @property
    def positions(self) -> Tensor:
        """The next tokens' position ids (B, 1)."""
        return self.cursor.length - self.padding

    def drop_finished(self) -> None:
        """Drop finished rows, by a copy of the others' cache."""
        self.static_step = None
        live = (~self.finished).nonzero().squeeze(1)
        for layer in self.cache.layers:
            layer.reorder_cache(live)
        self.mask, self.padding = self.mask[live], self.padding[live]
        self.rows, self.finished = self.rows[live], self.finished[live]


def _left_padded(prompts: Prompts, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and mask (P, S), 1 on tokens."""
    rows = [torch.tensor(prompt, dtype=torch.int64) for prompt in prompts]
    ids, mask = (
        pad_sequence(tensors, batch_first=True, padding_side="left").to(device)
        for tensors in (rows, [torch.ones_like(row) for row in rows])
    )
    return ids, mask


def _responses(tokens: Tensor, logprobs: Tensor, eos: Sequence[int]) -> list[Response]:
    """One response for each row (B, T), through its first end-of-sequence token."""
    ids, scores = tokens.cpu().numpy(), logprobs.cpu().numpy()
    ends = np.isin(ids, eos)
    lengths = np.where(ends.any(axis=1), ends.argmax(axis=1) + 1, ids.shape[1])
    return [
        Response(tokens=ids[row, :length].copy(), logprobs=scores[row, :length].copy())
        for row, length in enumerate(lengths.tolist())
    ]
