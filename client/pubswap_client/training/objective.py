"""The clipped GRPO objective (ALGORITHM, step 6), as a pure function of tensors.

For token t of response y, with rho = pi_theta / pi_old,

    J_t = w_t * S_t - beta * KL_t
    S_t = min(rho_t A, clip(rho_t, 1 - low, 1 + high) A)
    KL_t = exp(ref_t - theta_t) - (ref_t - theta_t) - 1             (k3, of log-probabilities)

The clipping (`grpo.clipping`) is one of methods/clippings.py.
The loss is -sum_t c_t J_t. The coefficients c (`grpo.loss_aggregation`) are those of the step's
whole batch, so that losses, figures and gradients of micro-batches simply add up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from pubswap_protocol.methods.clippings import exp
from pubswap_protocol.settings import GrpoSettings

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


def objective(
    logprobs: Tensor,
    targets: Targets,
    settings: GrpoSettings,
    entropy: Tensor | None = None,
    *,
    decoupled: bool = False,
) -> Loss:
    """The loss for current log-probabilities, without the FedProx term.

    `decoupled` weighs donated tokens by pi_old / pi_donor (see `importance_weight`).
    """
    surrogate, clipped = settings.clipping.surrogate(
        logprobs, targets.old, targets.advantages, targets.sequences
    )
    weight = importance_weight(targets, settings, decoupled)
    policy = -(targets.weights * (weight * surrogate)).sum()
    kl = bonus = logprobs.new_zeros(())
    if targets.reference is not None:
        kl = (targets.weights * k3(logprobs, targets.reference)).sum()
    if entropy is not None:
        bonus = (targets.weights * entropy).sum()
    total = policy + settings.kl_beta * kl - settings.entropy_coefficient * bonus
    shares = targets.weights * clipped
    return Loss(total, kl.detach(), shares.sum(), (shares * targets.donated).sum())


def importance_weight(targets: Targets, settings: GrpoSettings, decoupled: bool) -> Tensor:
    """The weight w of each token: truncated pi_old / pi_sampler, if the settings ask for it.

    On own tokens min(pi_old / pi_engine, C) if `rollout_correction` is 'token_truncate', because
    the engine's numbers differ slightly from the trainer's. On donated tokens
    min(pi_old / pi_donor, C) if `decoupled`. 1 everywhere else.
    """
    truncated: Tensor = exp(targets.old - targets.behaviour).clamp(max=LARGEST_WEIGHT)
    ones = torch.ones_like(truncated)
    own = truncated if settings.rollout_correction == "token_truncate" else ones
    donated = truncated if decoupled else ones
    return torch.where(targets.donated, donated, own)


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """The k3 estimate of KL(theta || ref) at each sampled token: never negative."""
    difference = reference - logprobs
    ratio: Tensor = exp(difference)
    return ratio - difference - 1


def fedprox_penalty(
    parameters: Sequence[Tensor], round_start: Sequence[Tensor], mu: float
) -> Tensor:
    """(mu / 2) |theta - theta_round|^2: the sum of squares over every A and B."""
    squares = [
        (parameter - start).square().sum()
        for parameter, start in zip(parameters, round_start, strict=True)
    ]
    return mu / 2 * torch.stack(squares).sum()
