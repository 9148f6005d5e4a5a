"""One GRPO step's optimizer steps on a batch (ALGORITHM, step 6)."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pubswap_client.training.advantages import zero_variance
from pubswap_client.training.groups import Batch
from pubswap_client.training.logprobs import micro_batches, response_logprobs, score_rows
from pubswap_client.training.objective import (
    Loss,
    Targets,
    fedprox_penalty,
    objective,
    token_weights,
)
from pubswap_client.training.policy import Policy
from pubswap_protocol.settings import GrpoSettings, RunSettings


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """What one step did. loss, kl, clip_share and grad_norm are means over its epochs."""

    loss: float
    kl: float
    clip_share: float  # share of tokens whose gradient the clip stops
    reward: float  # mean over own responses; over all if none is own
    zero_variance_share: float  # groups whose rewards are all equal
    response_tokens: float  # mean length
    tokens: int
    seconds: float
    grad_norm: float  # before clipping


@dataclass(frozen=True, slots=True)
class _Epoch:
    loss: float
    kl: float
    clip_share: float
    grad_norm: float


def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    settings: RunSettings,
    round_start: Sequence[Tensor],
    rows: int = 64,
) -> StepMetrics:
    """`gradient_epochs` optimizer steps on the whole batch, `rows` rows at a time in memory.

    `round_start` are the factors, in the order of `policy.trainable()`, that FedProx holds on to.
    """
    started = time.monotonic()
    targets = _targets(policy, batch, settings.grpo, rows)
    with_entropy = settings.grpo.entropy_coefficient != 0
    epochs = []
    for number in range(settings.grpo.gradient_epochs):
        optimizer.zero_grad(set_to_none=True)
        losses = []
        for part in micro_batches(batch.rows, rows):
            scores = score_rows(policy, batch, part, settings.grpo.temperature, with_entropy)
            if number == 0:  # pi_old is this very pass, so rho = 1 and no other pass is needed
                targets.old[part] = scores.logprobs.detach()
            losses.append(
                objective(scores.logprobs, targets.rows(part), settings.grpo, scores.entropy)
            )
            losses[-1].total.backward()  # type: ignore[no-untyped-call]
        penalty = _backward_fedprox(policy, settings, round_start)
        norm = torch.nn.utils.clip_grad_norm_(policy.trainable(), settings.grpo.max_grad_norm)
        optimizer.step()
        epochs.append(_epoch(losses, penalty, norm.item()))
    return _metrics(batch, epochs, time.monotonic() - started)


def _targets(policy: Policy, batch: Batch, settings: GrpoSettings, rows: int) -> Targets:
    """The whole batch's targets; `old` is filled in during the first epoch."""
    reference = None
    if settings.kl_beta:
        with policy.reference():
            reference = response_logprobs(policy, batch, settings.temperature, rows)
    return Targets(
        advantages=batch.advantages,
        weights=token_weights(batch.response_mask, settings.loss_aggregation),
        old=torch.zeros_like(batch.behaviour),
        donated=batch.donated,
        behaviour=batch.behaviour,
        reference=reference,
    )


def _backward_fedprox(
    policy: Policy, settings: RunSettings, round_start: Sequence[Tensor]
) -> float:
    """Add the proximal term's gradient, once for the whole batch; returns its value."""
    if settings.method != "fedprox":
        return 0.0
    penalty = fedprox_penalty(policy.trainable(), round_start, settings.fedprox.mu)
    penalty.backward()  # type: ignore[no-untyped-call]
    return penalty.item()


def _epoch(losses: Sequence[Loss], penalty: float, norm: float) -> _Epoch:
    return _Epoch(
        loss=sum(loss.total.item() for loss in losses) + penalty,
        kl=sum(loss.kl.item() for loss in losses),
        clip_share=sum(loss.clip_share.item() for loss in losses),
        grad_norm=norm,
    )


def _metrics(batch: Batch, epochs: Sequence[_Epoch], seconds: float) -> StepMetrics:
    own = batch.rewards.flatten()[~batch.donated]
    tokens = int(batch.response_mask.sum())

    def mean(name: str) -> float:
        return sum(float(getattr(epoch, name)) for epoch in epochs) / len(epochs)

    return StepMetrics(
        loss=mean("loss"),
        kl=mean("kl"),
        clip_share=mean("clip_share"),
        reward=float((own if len(own) else batch.rewards).mean()),
        zero_variance_share=float(zero_variance(batch.rewards).float().mean()),
        response_tokens=tokens / batch.rows,
        tokens=tokens,
        seconds=seconds,
        grad_norm=mean("grad_norm"),
    )
