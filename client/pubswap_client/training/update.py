"""The optimizer steps of one GRPO step on a batch (ALGORITHM, step 6).

The batch goes through the model in packs: without padding, each prompt once for its responses, and
without holding logits. Coefficients sum to 1 over the whole batch, so the losses and gradients of
packs, and of processes, add up to the whole batch's.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from pubswap_client.policy.groups import Batch
from pubswap_client.policy.logprobs import plan_of, score_pack
from pubswap_client.policy.memory import is_out_of_memory
from pubswap_client.policy.packing import Pack, pack
from pubswap_client.policy.policy import Policy
from pubswap_client.training.evidence import EvidenceTable
from pubswap_client.training.memory import TokenBudget, memory_used
from pubswap_client.training.metrics import StepMetrics, mean_of
from pubswap_client.training.mismatch import check, measure
from pubswap_client.training.objective import Targets, fedprox_penalty, objective
from pubswap_client.training.own_rank import clear_others, put_others_back
from pubswap_client.training.privacy import GroupClipping, StepNoise
from pubswap_client.training.team import SINGLE, Team, Update
from pubswap_protocol.errors import Diverged, OutOfMemory
from pubswap_protocol.methods.advantages import zero_variance
from pubswap_protocol.methods.method import FedProx
from pubswap_protocol.settings import GrpoSettings
from pubswap_protocol.tensors.responses import UNVERIFIED

FIGURES = 4  # of a pass: loss, KL, clip share, and clip share of donated tokens


@dataclass(frozen=True)
class UpdateContext:
    """What a member's updates have in common; the run's settings are the policy's."""

    policy: Policy
    budget: TokenBudget
    checkpointing: bool = False
    team: Team = SINGLE
    own_rank: int | None = None


def update(
    context: UpdateContext,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    round_start: Sequence[Tensor],
    max_mismatch: float | None = None,
    noise: StepNoise | None = None,
) -> StepMetrics:
    """Take `gradient_epochs` optimizer steps on the whole batch, at most a budget's tokens at once.

    `round_start` holds the factors at the round's start, in the order of `policy.trainable()`.
    FedProx is anchored to them, and with `own_rank` so are the other directions of the adapter.
    With `noise`, each group's gradient is clipped and noise is added to their sum (privacy.py).
    When memory runs out, the budget is halved and the current pass starts over. A team's leader
    calls this, its followers call `follow_update`; all end with the same factors. Raises
    StaleAdapter, before any step is made, if own tokens were not sampled from this policy (see
    mismatch.py), and Diverged, before the step, if a loss or gradient is not finite.
    """
    started = time.monotonic()
    policy, team, own_rank = context.policy, context.team, context.own_rank
    grpo = policy.settings.grpo
    clipping = noise.clipping if noise else None
    team.announce(Update(batch, context.budget.tokens, clipping), policy.factors())
    passes = _Passes(context, batch, clipping)
    with policy.packed(context.checkpointing):
        passes.score_reference()
        epochs = []
        for number in range(grpo.gradient_epochs):
            sums = passes.accumulate(first=number == 0)
            if number == 0 and max_mismatch is not None:
                check(passes.mismatch(), max_mismatch)
            if noise is not None:
                noise.add_to(gradients_of(policy), number)
            penalty = _backward_fedprox(policy, round_start)
            if own_rank is not None:
                clear_others(policy, own_rank, gradients_of(policy))
            norm = torch.nn.utils.clip_grad_norm_(policy.trainable(), grpo.max_grad_norm)
            # One transfer, because this is the only wait for the GPU's work.
            loss, kl, clipped, donated, gradient_norm = torch.cat([sums, norm[None]]).tolist()
            _check_finite(team, loss=loss, kl=kl, gradient_norm=gradient_norm)
            optimizer.step()
            if own_rank is not None:
                put_others_back(policy, own_rank, round_start)
            team.broadcast(policy.trainable())
            epochs.append((loss + penalty, kl, clipped, donated, gradient_norm))
    return passes.metrics(epochs, started)


def _check_finite(team: Team, **values: float) -> None:
    wrong = [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
    if team.any(bool(wrong)):
        raise Diverged(
            f"In this step {', '.join(wrong)}: training on would destroy the factors. If the round "
            "began this way, the operator can roll the run back. Otherwise create a new run with a "
            "lower grpo.learning_rate, and with grpo, lora and privacy closer to their defaults."
        )


def follow_update(policy: Policy, shared: Update, checkpointing: bool, team: Team) -> None:
    """A follower's part in an update: its packs' gradients. The leader takes the steps."""
    context = UpdateContext(policy, TokenBudget(shared.tokens), checkpointing, team)
    passes = _Passes(context, shared.batch, shared.clipping)
    with policy.packed(checkpointing):
        passes.score_reference()
        for number in range(policy.settings.grpo.gradient_epochs):
            passes.accumulate(first=number == 0)
            if team.any(False):  # the leader's step has diverged
                return
            team.broadcast(policy.trainable())


Work = Callable[[Pack, Sequence[int]], None]
"""Processes a pack, given with the rows that it holds."""


@dataclass
class _Passes:
    """The passes of one update over its batch; (B, T) tensors are kept flat."""

    context: UpdateContext
    batch: Batch
    clipping: GroupClipping | None

    def __post_init__(self) -> None:
        self.policy, self.team = self.context.policy, self.context.team
        run = self.policy.settings
        exchange, self.settings = run.exchange, run.grpo
        self.decoupled = exchange is not None and exchange.donor_ratio == "decoupled"
        batch, device = self.batch, self.policy.device
        self.rows = _rows(batch, self.settings)
        self.targets = _targets(batch, self.settings, device)
        if self.clipping is not None:
            # Divide by the expected number, so that the number drawn changes no group's part.
            self.targets.weights.mul_(len(batch.prompt_lengths) / self.clipping.groups)
        self.evidence = EvidenceTable(batch, _checked(batch, self.rows), device)

    @torch.no_grad()
    def score_reference(self) -> None:
        """Fill in the base model's log-probabilities, if there is a KL term."""
        reference = self.targets.reference
        if reference is None:
            return

        def score(part: Pack, _rows: Sequence[int]) -> None:
            reference[part.indices] = score_pack(
                self.policy, part, self.settings.temperature
            ).logprobs

        with self.policy.reference():
            self._run_packs(self.rows, score, clear=[reference])
        self.team.all_reduce([reference])

    def accumulate(self, first: bool) -> Tensor:
        """Leave the whole batch's gradient in the factors; returns its loss, KL and clip shares.

        The first epoch's own pass gives pi_old, so rho = 1 and no separate pass is needed.
        """
        for factor in self.policy.trainable():
            factor.grad = torch.zeros_like(factor)
        gradients, old = gradients_of(self.policy), self.targets.old
        if self.clipping is None:
            looked = [old, *self.evidence.tensors] if first else []
            return self._learn(self.rows, gradients, looked)
        totals = [torch.zeros_like(gradient) for gradient in gradients]
        sums = torch.zeros(FIGURES, device=self.policy.device)
        size = self.batch.group_size
        for group, rows in groupby(self.rows, lambda row: row // size):
            group_old = old.view(-1, size, self.batch.width)[group]
            sums += self._learn(list(rows), gradients, [group_old] if first else [])
            self.clipping.add(totals, gradients)
        for gradient, total in zip(gradients, totals, strict=True):
            gradient.copy_(total)
        return sums

    def _learn(self, rows: list[int], gradients: list[Tensor], old: list[Tensor]) -> Tensor:
        """Add the rows' gradient; returns their loss, KL and clip shares.

        `old` holds the tensors that this pass fills in, such as pi_old of these rows, if any.
        """
        sums = torch.zeros(FIGURES, device=self.policy.device)
        with_entropy = self.settings.entropy_coefficient != 0

        def learn(part: Pack, rows: Sequence[int]) -> None:
            look = self.evidence.observer(part, rows) if old else None
            scores = score_pack(self.policy, part, self.settings.temperature, with_entropy, look)
            if old:
                self.targets.old[part.indices] = scores.logprobs.detach()
            targets = self.targets.take(part.indices)
            loss = objective(
                scores.logprobs, targets, self.settings, scores.entropy, decoupled=self.decoupled
            )
            loss.total.backward()  # type: ignore[no-untyped-call]
            shares = [loss.clip_share, loss.donated_clip_share]
            sums.add_(torch.stack([loss.total.detach(), loss.kl, *shares]))

        self._run_packs(rows, learn, clear=[*gradients, sums, *old])
        self.team.all_reduce([*gradients, sums, *old])
        return sums

    def mismatch(self) -> float:
        """The mismatch on own tokens, where both log-probabilities are known."""
        own_tokens = self._tokens(~self.batch.donated)
        return measure(self.targets.old.cpu(), self.targets.behaviour.cpu(), own_tokens)

    def metrics(self, epochs: Sequence[Sequence[float]], started: float) -> StepMetrics:
        """Metrics since `started`; an epoch holds its FIGURES' sums and the gradient's norm."""
        batch = self.batch
        loss, kl, clipped, donated_clipped, norm = (
            sum(figures) / len(epochs) for figures in zip(*epochs, strict=True)
        )
        own_rewards = batch.rewards.flatten()[~batch.donated]
        tokens, donated = sum(batch.lengths), self._tokens(batch.donated)
        cut = [int(each[-1]) not in self.policy.card.eos_token_ids for each in batch.responses]
        probabilities = self.targets.old.cpu()[donated].exp()
        weights = self.targets.weights.cpu()
        whole, donated_weight = float(weights.sum()) or 1.0, float(weights[donated].sum())
        return StepMetrics(
            loss=loss,
            kl=kl / whole,
            clip_share=clipped / whole,
            reward=mean_of(own_rewards if len(own_rewards) else batch.rewards),
            zero_variance_share=mean_of(zero_variance(batch.rewards).float()),
            response_tokens=tokens / max(1, batch.rows),
            tokens=tokens,
            seconds=time.monotonic() - started,
            grad_norm=norm,
            mismatch=self.mismatch(),
            cut_share=sum(cut) / max(1, batch.rows),
            memory_bytes=memory_used(self.policy.device),
            donated_tokens=len(probabilities),
            donated_probability=mean_of(probabilities),
            donated_clip_share=donated_clipped / donated_weight if len(probabilities) else 0.0,
            donors=self.evidence.by_donor(),
        )

    def _tokens(self, rows: Tensor) -> Tensor:
        """Mask of the flat tokens (B T,) that are in these rows (B,) and trained on."""
        trained = torch.zeros(self.batch.rows, dtype=torch.bool)
        trained[self.rows] = True
        return ((trained & rows)[:, None] & self.batch.response_mask).flatten()

    def _run_packs(self, rows: list[int], work: Work, clear: Sequence[Tensor]) -> None:
        """Do this process's packs. If memory runs out, clear the tensors and use smaller packs."""
        while True:
            if not self.team.any(self._exhausted(rows, work)):
                return
            self.context.budget.halve()
            for tensor in clear:
                tensor.zero_()

    def _exhausted(self, rows: list[int], work: Work) -> bool:
        """Whether memory ran out in the pass. A failed pass is freed when this returns."""
        limit = self._limit(len(rows))
        plans = plan_of(self.policy, self.batch, rows, limit) if self.batch.rows else []
        try:
            for part in self.team.share(plans):
                work(pack(self.batch, part, self.policy.device), part)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if self.team.lockstep:
                # The other processes wait in the layer that we did not finish, so we cannot retry.
                raise OutOfMemory(
                    f"Memory ran out with {self.context.budget.tokens} tokens in a micro-batch of "
                    "a sharded model. Set a smaller micro_batch_tokens, or gradient_checkpointing "
                    "= true, and start again: training continues at this step."
                ) from None
            return True
        return False

    def _limit(self, rows: int) -> int:
        """Tokens at a time: the budget, or fewer so that every process has work."""
        everything = sum(self.batch.prompt_lengths) + sum(self.batch.lengths)
        if self.clipping is not None:
            everything = -(-everything * rows // max(1, self.batch.rows))
        return min(self.context.budget.tokens, -(-everything // self.team.size))


def gradients_of(policy: Policy) -> list[Tensor]:
    """The factors' gradients, in the order of `policy.trainable()`."""
    return [factor.grad for factor in policy.trainable() if factor.grad is not None]


def _rows(batch: Batch, settings: GrpoSettings) -> list[int]:
    """The rows to train on: all, or without KL and entropy terms, those with an advantage."""
    if settings.kl_beta != 0 or settings.entropy_coefficient != 0:
        return list(range(batch.rows))
    idle = zero_variance(batch.rewards).repeat_interleave(batch.group_size).tolist()
    return [row for row in range(batch.rows) if not idle[row]]


def _checked(batch: Batch, rows: Sequence[int]) -> list[int]:
    """The donated rows that name the seed of their noise."""
    verifiable = batch.donated & (batch.seeds != UNVERIFIED)
    return [row for row in rows if verifiable[row]]


def _targets(batch: Batch, settings: GrpoSettings, device: torch.device) -> Targets:
    """The whole batch's targets (B T,); `old` and `reference` are filled in later."""
    width = batch.width

    def of_rows(values: Tensor) -> Tensor:
        return values.repeat_interleave(width).to(device)

    behaviour = batch.behaviour.flatten().to(device)
    return Targets(
        advantages=of_rows(batch.advantages),
        weights=settings.loss_aggregation.coefficients(
            batch.response_mask, settings.max_response_tokens
        )
        .flatten()
        .to(device),
        old=torch.zeros_like(behaviour),
        donated=of_rows(batch.donated),
        behaviour=behaviour,
        reference=torch.zeros_like(behaviour) if settings.kl_beta else None,
        sequences=of_rows(torch.arange(batch.rows)) if settings.clipping.by_sequence else None,
    )


def _backward_fedprox(policy: Policy, round_start: Sequence[Tensor]) -> float:
    """Add the proximal term's gradient, once for the whole batch; returns its value."""
    method = policy.settings.method
    if not isinstance(method, FedProx):
        return 0.0
    penalty = fedprox_penalty(policy.trainable(), round_start, method.mu)
    penalty.backward()  # type: ignore[no-untyped-call]
    return penalty.item()
