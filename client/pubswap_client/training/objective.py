"""The clipped GRPO objective (ALGORITHM, step 6), as a pure function of tensors.

For token t of response y, with rho = pi_theta / pi_old,

    J_t = w_t * S_t - beta * KL_t
    S_t = min(rho_t A, clip(rho_t, 1 - low, 1 + high) A)
    KL_t = exp(ref_t - theta_t) - (ref_t - theta_t) - 1             (k3, of log-probabilities)

With clipping 'sequence', rho_t is exp(mean of log rho over y), with the gradient of its own token.
The loss is -sum_t c_t J_t. The coefficients c (see `token_weights`) sum to 1 over the step's
whole batch, so that losses, figures and gradients of micro-batches simply add up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

from pubswap_protocol.settings import GrpoSettings

# Bounds the exponents: exp(20) is far outside the clip range, and its square is still finite.
LOG_RATIO_LIMIT = 20.0
LARGEST_WEIGHT = 2.0  # C, of a token whose sampler is not pi_old


@dataclass(frozen=True, slots=True)
class Targets:
    """Per-token targets of the loss; all of one shape, or of shapes that broadcast to it."""

    advantages: Tensor
    weights: Tensor  # the coefficients c
    old: Tensor  # log-probabilities under this client's policy before the step
    donated: Tensor  # True on a peer's tokens
    behaviour: Tensor  # log-probabilities from the policy and engine that sampled the tokens
    reference: Tensor | None  # log-probabilities under the base model; None without a KL term
    sequences: Tensor | None = None  # number of each token's response, for clipping by sequence

    def take(self, indices: Tensor) -> "Targets":
        """The tokens at `indices` (n,); all tensors must be flat."""
        tensors = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(self, **{name: t[indices] for name, t in tensors.items() if t is not None})


@dataclass(frozen=True, slots=True)
class Loss:
    """The differentiable loss, and its figures. All are sums weighted by the coefficients c."""

    total: Tensor
    kl: Tensor
    clip_share: Tensor
    donated_clip_share: Tensor


def token_weights(mask: Tensor, aggregation: Literal["sequence_mean", "token_mean"]) -> Tensor:
    """The coefficients c (B, T) for a response mask (B, T) of the whole batch.

    sequence_mean: 1 / (B |y|), the mean over responses of the mean over their tokens;
    token_mean: 1 / (number of response tokens).
    """
    weights = mask.float()
    if aggregation == "sequence_mean":
        return weights / weights.sum(dim=1, keepdim=True) / len(weights)
    return weights / weights.sum()


def objective(
    logprobs: Tensor, targets: Targets, settings: GrpoSettings, entropy: Tensor | None = None
) -> Loss:
    """The loss for current log-probabilities, without the FedProx term."""
    surrogate, clipped = clipped_surrogate(logprobs, targets, settings)
    policy = -(targets.weights * surrogate).sum()
    kl = bonus = logprobs.new_zeros(())
    if targets.reference is not None:
        kl = (targets.weights * k3(logprobs, targets.reference)).sum()
    if entropy is not None:
        bonus = (targets.weights * entropy).sum()
    total = policy + settings.kl_beta * kl - settings.entropy_coefficient * bonus
    shares = targets.weights * clipped
    return Loss(total, kl.detach(), shares.sum(), (shares * targets.donated).sum())


def clipped_surrogate(
    logprobs: Tensor, targets: Targets, settings: GrpoSettings
) -> tuple[Tensor, Tensor]:
    """The policy term w_t S_t of each token, and where the clip stops its gradient."""
    advantages = targets.advantages
    difference = logprobs - targets.old
    if settings.clipping == "sequence":
        difference = response_means(difference.detach(), targets) + (logprobs - logprobs.detach())
    ratio = _exp(difference)
    bounded = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    surrogate = torch.min(ratio * advantages, bounded * advantages)
    clipped = torch.where(
        advantages > 0,
        ratio > 1 + settings.clip_high,
        (ratio < 1 - settings.clip_low) & (advantages < 0),
    )
    return importance_weight(targets, settings) * surrogate, clipped


def response_means(values: Tensor, targets: Targets) -> Tensor:
    """For each token (n,), the mean over its response, all of whose tokens must be present."""
    assert targets.sequences is not None
    lengths = torch.bincount(targets.sequences)
    sums = values.new_zeros(len(lengths)).index_add(0, targets.sequences, values)
    return sums[targets.sequences] / lengths[targets.sequences]


def importance_weight(targets: Targets, settings: GrpoSettings) -> Tensor:
    """The weight w of each token: truncated pi_old / pi_sampler, if the settings ask for it.

    On own tokens min(pi_old / pi_engine, C) if `rollout_correction` is 'token_truncate', because
    the engine's numbers differ slightly from the trainer's. On donated tokens
    min(pi_old / pi_donor, C) if `donor_ratio` is 'decoupled'. 1 everywhere else.
    """
    truncated = _exp(targets.old - targets.behaviour).clamp(max=LARGEST_WEIGHT)
    ones = torch.ones_like(truncated)
    own = truncated if settings.rollout_correction == "token_truncate" else ones
    donated = truncated if settings.donor_ratio == "decoupled" else ones
    return torch.where(targets.donated, donated, own)


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """The k3 estimate of KL(theta || ref) at each sampled token: never negative."""
    difference = reference - logprobs
    return _exp(difference) - difference - 1


def fedprox_penalty(
    parameters: Sequence[Tensor], round_start: Sequence[Tensor], mu: float
) -> Tensor:
    """(mu / 2) |theta - theta_round|^2: the sum of squares over every A and B."""
    squares = [
        (parameter - start).square().sum()
        for parameter, start in zip(parameters, round_start, strict=True)
    ]
    return mu / 2 * torch.stack(squares).sum()


def _exp(difference: Tensor) -> Tensor:
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
