"""The clipped GRPO objective (ALGORITHM, step 6), as a pure function of tensors.

For token t of response y, with rho = pi_theta / pi_old,

    J_t = w_t * S_t - beta * KL_t
    S_t = min(rho_t A, clip(rho_t, 1 - low, 1 + high) A)
    KL_t = exp(ref_t - theta_t) - (ref_t - theta_t) - 1             (k3, of log-probabilities)

Other settings have another S; sg(x) is x without a gradient:

    clipping 'sequence'   rho_t is exp(mean of log rho over y), with the gradient of its own token
    clipping 'soft'       S_t = sg(clip(rho_t, 1 - low, 1 + high)) A log pi_theta
    clipping 'asymmetric' S_t = A log pi_theta where A > 0, else sg(min(1, rho_y)) A log pi_theta,
                          rho_y = the product of rho over y
    donor_ratio 'donor'   pi_old is the donor's own on donated tokens
    donor_ratio 'shaped'  S_t = pi_theta / (pi_theta + 0.1) A on donated tokens

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
SHAPE = 0.1  # gamma of LUFFY (Yan et al., 2025): rare donated tokens keep a gradient


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
    """The policy term w_t S_t of each token, and where the clip stops its gradient.

    A soft or asymmetric clip stops no gradient; the mask then marks clipped weights. With a dual
    clip c > 1 the term is at least c A where A < 0, so that a single token that became far more
    likely cannot outweigh all others.
    """
    advantages = targets.advantages
    old = targets.old
    if settings.donor_ratio == "donor":
        old = torch.where(targets.donated, targets.behaviour, old)
    difference = logprobs - old
    if settings.clipping == "sequence":
        sums = sequence_sums(difference.detach(), targets)
        means = sums / sequence_sums(torch.ones_like(sums), targets)
        difference = means + (logprobs - logprobs.detach())
    ratio = _exp(difference)
    bounded = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    surrogate = torch.min(ratio * advantages, bounded * advantages)
    clipped = torch.where(
        advantages > 0,
        ratio > 1 + settings.clip_high,
        (ratio < 1 - settings.clip_low) & (advantages < 0),
    )
    if settings.dual_clip is not None:
        floor = settings.dual_clip * advantages
        surrogate = torch.where(advantages < 0, torch.max(surrogate, floor), surrogate)
        clipped = clipped | ((ratio > settings.dual_clip) & (advantages < 0))
    if settings.clipping == "soft":
        surrogate = bounded.detach() * advantages * logprobs
        clipped = (ratio != bounded) & (advantages != 0)
    if settings.clipping == "asymmetric":
        whole = _exp(sequence_sums(difference.detach(), targets))
        clipped = (whole > 1) & (advantages < 0)
        weight = torch.where(advantages < 0, whole.clamp(max=1), torch.ones_like(whole))
        surrogate = weight * advantages * logprobs
    if settings.donor_ratio == "shaped":
        probabilities = logprobs.exp()
        shaped = probabilities / (probabilities + SHAPE) * advantages
        surrogate = torch.where(targets.donated, shaped, surrogate)
        clipped = clipped & ~targets.donated
    return importance_weight(targets, settings) * surrogate, clipped


def sequence_sums(values: Tensor, targets: Targets) -> Tensor:
    """For each token (n,), the sum over its response, all of whose tokens must be present."""
    assert targets.sequences is not None
    count = len(torch.bincount(targets.sequences))
    return values.new_zeros(count).index_add(0, targets.sequences, values)[targets.sequences]


def importance_weight(targets: Targets, settings: GrpoSettings) -> Tensor:
    """The weight w of each token: truncated pi_old / pi_sampler, if the settings ask for it.

    On own tokens min(pi_old / pi_engine, C) if `rollout_correction` is 'token_truncate', because
    the engine's numbers differ slightly from the trainer's. On donated tokens
    min(pi_old / pi_donor, C) if `donor_ratio` is 'decoupled'. 1 everywhere else.
    """
    ratio = _exp(targets.old - targets.behaviour)
    ones = torch.ones_like(ratio)
    own = donated = ones
    if settings.rollout_correction == "token_truncate":
        own = ratio.clamp(max=settings.rollout_correction_cap)
    if settings.donor_ratio == "decoupled":
        donated = ratio.clamp(max=settings.donor_ratio_cap)
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
