"""Per-token log-probabilities of responses, over packs and without holding all logits."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pubswap_client.policy.groups import Batch, Group, collate
from pubswap_client.policy.lora import product
from pubswap_client.policy.memory import is_out_of_memory, reason
from pubswap_client.policy.packing import Pack, pack, plan
from pubswap_client.policy.padded import PADDED, plan_padded
from pubswap_client.policy.policy import Policy
from pubswap_protocol.tensors.responses import Response

log = logging.getLogger(__name__)

# Logits in memory at a time, enough for fast products: 32 MiB of float32 on a CPU, 512 on a GPU.
CPU_LOGITS = 1 << 23
GPU_LOGITS = 1 << 27
CACHED_LOGITS = 1 << 17  # 512 KiB


Observe = Callable[[slice, Tensor], None]
"""Callback for a slice of the n tokens and their logits / temperature (m, V), up to a constant in
each row. It must read the logits at once and not change them. A token may come twice."""


def linear_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tokens: Tensor,
    temperature: float,
    entropy: bool = False,
    observe: Observe | None = None,
) -> tuple[Tensor, Tensor | None]:
    """log p of `tokens` (n,) and, if requested, entropies (n,), in float32.

    `hidden` is (n, H), `weight` (V, H), `bias` (V,) or None; only `hidden` gets a gradient.
    """
    logprobs, entropies = _LinearLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, tokens, temperature, entropy, observe
    )
    return logprobs, entropies if entropy else None


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tokens: Tensor,
        temperature: float,
        entropy: bool,
        observe: Observe | None,
    ) -> tuple[Tensor, Tensor]:
        count, differentiable = len(hidden), ctx.needs_input_grad[0]
        logprobs = torch.empty(count, dtype=torch.float32, device=hidden.device)
        entropies = torch.empty_like(logprobs) if entropy else logprobs.new_empty(0)
        slope = torch.empty_like(hidden) if differentiable else None
        entropy_slope = torch.empty_like(hidden) if differentiable and entropy else None
        limit = GPU_LOGITS if hidden.is_cuda else CPU_LOGITS
        size = max(1, limit // len(weight))
        # Copied once for all products, because a copy takes as long as one of them.
        factor = weight if weight.is_cuda else weight.float()
        for start in range(0, count, size):
            part = slice(start, start + size)
            # The compiled kernel divides by the temperature itself.
            compiled = hidden.is_cuda and observe is None and not entropy
            logits = _logits(hidden[part], factor, bias, 1.0 if compiled else temperature)
            if observe is not None:
                observe(slice(start, start + len(logits)), logits)
            shifted = torch.empty_like(logits) if entropy else None
            masses: Tensor | None
            if compiled:
                dtype = weight.dtype if differentiable else None
                masses, total, chosen = _compiled_masses(logits, tokens[part], temperature, dtype)
            else:
                masses, total, chosen = _exponentiated(logits, tokens[part], shifted)
            logprobs[part] = (chosen - total.log()).squeeze(1)
            if slope is not None:
                assert masses is not None
                mean = product(masses.to(weight.dtype), factor) / total
                slope[part] = (weight[tokens[part]] - mean) / temperature
            if shifted is not None:
                assert masses is not None
                expected = (masses * shifted).sum(dim=1, keepdim=True) / total
                entropies[part] = (total.log() - expected).squeeze(1)
                if entropy_slope is not None:
                    masses *= shifted.sub_(expected)
                    mean = product(masses.to(weight.dtype), factor) / total
                    entropy_slope[part] = mean / -temperature
        ctx.save_for_backward(slope, entropy_slope)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        slope, entropy_slope = ctx.saved_tensors
        gradient = gradients[0][:, None] * slope
        if entropy_slope is not None:
            gradient += gradients[1][:, None] * entropy_slope
        return gradient.to(slope.dtype), None, None, None, None, None, None


def _exponentiated(
    logits: Tensor, tokens: Tensor, shifted: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """exp(z - max z) in place of the logits z (m, V), its sums (m, 1), and z_y - max z (m, 1).

    `shifted`, if any, is set to z - max z. On a CPU, a few rows at a time stay in the core's cache
    from one operation to the next.
    """
    rows = len(logits) if logits.is_cuda else max(1, CACHED_LOGITS // logits.shape[1])
    chosen, totals = [], []
    for start in range(0, len(logits), rows):
        part = slice(start, start + rows)
        few = logits[part]
        few -= few.amax(dim=1, keepdim=True)
        chosen.append(few.gather(1, tokens[part, None]))
        if shifted is not None:
            shifted[part] = few
        totals.append(few.exp_().sum(dim=1, keepdim=True))
    return logits, torch.cat(totals), torch.cat(chosen)


def masses_of(
    logits: Tensor, tokens: Tensor, temperature: float, dtype: torch.dtype | None
) -> tuple[Tensor | None, Tensor, Tensor]:
    """`_exponentiated` of logits / temperature out of place, with masses in `dtype`, or None."""
    scaled = logits / temperature
    shifted = scaled - scaled.amax(dim=1, keepdim=True)
    masses = shifted.exp()
    chosen = shifted.gather(1, tokens[:, None])
    return None if dtype is None else masses.to(dtype), masses.sum(dim=1, keepdim=True), chosen


class CompiledMasses:
    """`masses_of`, compiled for a GPU: it reads the logits twice, where torch's separate operations
    read or write them ten times. Those are used if it cannot be compiled.
    """

    def __init__(self) -> None:
        self.works = True
        self._compiled: Callable[..., tuple[Tensor | None, Tensor, Tensor]] | None = None

    def __call__(
        self, logits: Tensor, tokens: Tensor, temperature: float, dtype: torch.dtype | None
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        if self.works:
            try:
                if self._compiled is None:
                    self._compiled = torch.compile(masses_of, dynamic=True)
                return self._compiled(logits, tokens, temperature, dtype)
            except Exception as error:  # Triton's, or the C compiler's that it needs
                if is_out_of_memory(error):
                    raise
                self.works = False
                log.warning(
                    "torch.compile does not work here, so updates take longer: %s", reason(error)
                )
        return _exponentiated(logits.div_(temperature), tokens, None)


_compiled_masses = CompiledMasses()


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    if bias is None and hidden.dtype == torch.float32:
        return (hidden / temperature) @ weight.t()  # far fewer numbers to divide
    # In float32: rounding logits to bfloat16 would bias the training.
    logits = product(hidden, weight.t())
    if bias is not None:
        logits += bias
    return logits if temperature == 1 else logits.div_(temperature)


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities of tokens, in any shape, and their entropies if requested."""

    logprobs: Tensor
    entropy: Tensor | None = None


def token_scores(logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """log p of `tokens` (...) under `logits` (..., V), in float32.

    With z = logits / temperature: log p(y) = z_y - logsumexp(z).
    """
    scaled = logits.float() / temperature
    return scaled.gather(-1, tokens[..., None]).squeeze(-1) - scaled.logsumexp(dim=-1)


def score_pack(
    policy: Policy,
    pack: Pack,
    temperature: float,
    entropy: bool = False,
    observe: Observe | None = None,
) -> Scores:
    """Score a pack's response tokens (n,) in one forward pass, with gradients.

    Call only inside `policy.packed()`. `observe` is called with the logits on the way.
    """
    hidden = policy.hidden(pack)
    if policy.linear_head:
        weight, bias = policy.head()
        # Some models keep the residual in float32; their own output layers round it, too.
        hidden = hidden.to(weight.dtype)
        return Scores(
            *linear_logprobs(hidden, weight, bias, pack.tokens, temperature, entropy, observe)
        )
    limit = GPU_LOGITS if hidden.is_cuda else CPU_LOGITS
    size = max(1, limit // policy.card.vocabulary)
    parts = []
    for start in range(0, len(hidden), size):
        chunk = slice(start, min(start + size, len(hidden)))
        look = None if observe is None else partial(observe, chunk)
        score = partial(_own_scores, policy, temperature=temperature, entropy=entropy, look=look)
        # Recompute the logits in the backward pass, because all tokens' logits do not fit.
        parts.append(checkpoint(score, hidden[chunk], pack.tokens[chunk], use_reentrant=False))
    logprobs, entropies = (torch.cat(each) for each in zip(*parts, strict=True))
    return Scores(logprobs, entropies if entropy else None)


def _own_scores(
    policy: Policy,
    hidden: Tensor,
    tokens: Tensor,
    temperature: float,
    entropy: bool,
    look: Callable[[Tensor], None] | None,
) -> tuple[Tensor, Tensor]:
    """log p (n,) and, if requested, entropies (n,), from the model's own logits."""
    logits = policy.own_logits(hidden).float() / temperature
    if look is not None:
        look(logits.detach())
    everything = logits.log_softmax(dim=-1)
    logprobs = everything.gather(-1, tokens[:, None]).squeeze(-1)
    entropies = -(everything.exp() * everything).sum(dim=-1) if entropy else logprobs[:0]
    return logprobs, entropies


def plan_of(policy: Policy, batch: Batch, rows: Sequence[int], budget: int) -> list[list[int]]:
    """The rows of each pack, with tokens counted as the policy's path does."""
    planner = plan_padded if policy.path == PADDED else plan
    return planner(batch.prompt_lengths, batch.lengths, rows, budget)


@torch.no_grad()
def response_logprobs(policy: Policy, batch: Batch, temperature: float, budget: int) -> Tensor:
    """Log-probabilities (B, T) of a batch's responses on the CPU, 0 on padding.

    At most `budget` tokens are computed at a time.
    """
    logprobs = torch.zeros_like(batch.behaviour)
    plans = plan_of(policy, batch, range(batch.rows), budget)
    with policy.packed():
        for rows in plans:
            part = pack(batch, rows, policy.device)
            scores = score_pack(policy, part, temperature)
            logprobs.view(-1)[part.indices.cpu()] = scores.logprobs.cpu()
    return logprobs


def mean_logprobs(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[Response]],
    budget: int,
) -> list[list[float]]:
    """(1/|y|) sum_t log pi(y_t), at the training temperature, of K responses to each of G prompts.

    The mean, because a sum would rank by length.
    """
    groups = [
        Group(prompt, group, [0.0] * len(group))
        for prompt, group in zip(prompts, responses, strict=True)
    ]
    batch = collate(groups)
    logprobs = response_logprobs(policy, batch, policy.settings.grpo.temperature, budget)
    means = logprobs.sum(dim=1) / torch.tensor(batch.lengths)
    by_group: list[list[float]] = means.view(len(groups), -1).tolist()
    return by_group
