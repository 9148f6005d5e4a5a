"""One GRPO step's optimizer steps on a batch (ALGORITHM, step 6).

The batch goes through the model in packs: no padding, each prompt once for its responses, no
logits held. Coefficients sum to 1 over the whole batch, so the losses and gradients of packs, and
of processes, add up to the whole batch's.
"""

import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pubswap_client.policy.groups import Batch, zero_variance
from pubswap_client.policy.logprobs import plan_of, score_pack
from pubswap_client.policy.memory import is_out_of_memory
from pubswap_client.policy.packing import Pack, pack
from pubswap_client.policy.policy import Policy
from pubswap_client.training.memory import TokenBudget, memory_used
from pubswap_client.training.metrics import Epoch, StepMetrics, step_metrics
from pubswap_client.training.mismatch import Mismatch, check, measure
from pubswap_client.training.objective import Targets, fedprox_penalty, objective, token_weights
from pubswap_client.training.team import SINGLE, Team
from pubswap_protocol.errors import Diverged, OutOfMemory
from pubswap_protocol.settings import GrpoSettings, RunSettings


def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    settings: RunSettings,
    round_start: Sequence[Tensor],
    budget: TokenBudget | None = None,
    checkpointing: bool = False,
    team: Team = SINGLE,
    max_mismatch: float | None = None,
) -> StepMetrics:
    """`gradient_epochs` optimizer steps on the whole batch, at most `budget` tokens at a time.

    `round_start` are the factors, in the order of `policy.trainable()`, that FedProx holds on to.
    When memory runs out, the budget is halved and the pass under way begins again. A team's leader
    calls this, its followers `follow_update`; all end with the same factors. Raises StaleAdapter,
    before any step is made, if own tokens were not sampled from this policy (see mismatch.py), and
    Diverged, before the step, for a loss or gradient that is no number.
    """
    started = time.monotonic()
    budget = budget or TokenBudget(1 << 30)
    team.announce(batch, budget.tokens, policy.factors())
    passes = _Passes(policy, batch, settings.grpo, budget, team)
    with policy.packed(checkpointing):
        passes.score_reference()
        epochs = []
        for number in range(settings.grpo.gradient_epochs):
            sums = passes.accumulate(first=number == 0)
            if number == 0 and max_mismatch is not None:
                check(passes.mismatch(), max_mismatch)
            penalty = _backward_fedprox(policy, settings, round_start)
            norm = torch.nn.utils.clip_grad_norm_(policy.trainable(), settings.grpo.max_grad_norm)
            # All at once: a GPU's work is waited for but here.
            loss, kl, clip_share, gradient_norm = torch.cat([sums, norm[None]]).tolist()
            _check_finite(loss=loss, kl=kl, gradient_norm=gradient_norm)
            optimizer.step()
            team.broadcast(policy.trainable())
            epochs.append(Epoch(loss + penalty, kl, clip_share, gradient_norm))
    return step_metrics(
        batch, epochs, passes.mismatch(), memory_used(policy.device), time.monotonic() - started
    )


def _check_finite(**values: float) -> None:
    wrong = [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
    if wrong:
        raise Diverged(
            f"In this step {', '.join(wrong)}: the factors would be lost. If the round began so, "
            "the operator can roll the run back; otherwise lower grpo.learning_rate in a new run."
        )


def follow_update(
    policy: Policy,
    batch: Batch,
    settings: RunSettings,
    budget: TokenBudget,
    checkpointing: bool,
    team: Team,
) -> None:
    """A follower's part in an update: its packs' gradients; the leader makes the steps."""
    passes = _Passes(policy, batch, settings.grpo, budget, team)
    with policy.packed(checkpointing):
        passes.score_reference()
        for number in range(settings.grpo.gradient_epochs):
            passes.accumulate(first=number == 0)
            team.broadcast(policy.trainable())


class _Passes:
    """The passes of one update over its batch; (B, T) tensors are kept flat."""

    def __init__(
        self, policy: Policy, batch: Batch, settings: GrpoSettings, budget: TokenBudget, team: Team
    ) -> None:
        self.policy = policy
        self.batch = batch
        self.settings = settings
        self.budget = budget
        self.team = team
        self.rows = _rows(batch, settings)
        self.targets = _targets(batch, settings, policy.device)

    @torch.no_grad()
    def score_reference(self) -> None:
        """Fill in the base model's log-probabilities, if there is a KL term."""
        reference = self.targets.reference
        if reference is None:
            return

        def score(part: Pack) -> None:
            reference[part.indices] = score_pack(
                self.policy, part, self.settings.temperature
            ).logprobs

        with self.policy.reference():
            self._each_pack(score, clear=[reference])
        self.team.all_reduce([reference])

    def accumulate(self, first: bool) -> Tensor:
        """Leave the whole batch's gradient in the factors; returns its loss, KL and clip share.

        The first epoch's own pass is pi_old, so that rho = 1 and no other pass is needed.
        """
        factors = self.policy.trainable()
        for factor in factors:
            factor.grad = torch.zeros_like(factor)
        gradients = [factor.grad for factor in factors if factor.grad is not None]
        sums = torch.zeros(3, device=self.policy.device)
        with_entropy = self.settings.entropy_coefficient != 0

        def learn(part: Pack) -> None:
            scores = score_pack(self.policy, part, self.settings.temperature, with_entropy)
            if first:
                self.targets.old[part.indices] = scores.logprobs.detach()
            targets = self.targets.take(part.indices)
            loss = objective(scores.logprobs, targets, self.settings, scores.entropy)
            loss.total.backward()  # type: ignore[no-untyped-call]
            sums.add_(torch.stack([loss.total.detach(), loss.kl, loss.clip_share]))

        old = [self.targets.old] if first else []
        self._each_pack(learn, clear=[*gradients, sums, *old])
        self.team.all_reduce([*gradients, sums, *old])
        return sums

    def mismatch(self) -> Mismatch:
        """Of own tokens, whose log-probabilities we and the engine both know."""
        rows = torch.zeros(self.batch.rows, dtype=torch.bool)
        rows[self.rows] = True
        own = (rows & ~self.batch.donated)[:, None] & self.batch.response_mask
        return measure(self.targets.old.cpu(), self.targets.behaviour.cpu(), own.flatten())

    def _each_pack(self, work: Callable[[Pack], None], clear: Sequence[Tensor]) -> None:
        """Do this process's packs; from clean tensors again, in smaller packs, if memory ends."""
        while True:
            if not self.team.any(self._exhausted(work)):
                return
            self.budget.halve()
            for tensor in clear:
                tensor.zero_()

    def _exhausted(self, work: Callable[[Pack], None]) -> bool:
        """Whether memory ran out on the way. The failed pass is freed when this returns."""
        plans = plan_of(self.policy, self.batch, self.rows, self._limit())
        try:
            for rows in self.team.share(plans):
                work(pack(self.batch, rows, self.policy.device))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if self.team.lockstep:
                # The others wait in the layer that we did not finish: there is no way back.
                raise OutOfMemory(
                    f"Memory ran out with {self.budget.tokens} tokens in a micro-batch of a "
                    "sharded model. Set a smaller micro_batch_tokens, or gradient_checkpointing "
                    "= true, and start again: it goes on at this step."
                ) from None
            return True
        return False

    def _limit(self) -> int:
        """Tokens at a time: the budget, or less so that every process has something to do."""
        everything = sum(self.batch.prompt_lengths) + sum(self.batch.lengths)
        return min(self.budget.tokens, -(-everything // self.team.size))


def _rows(batch: Batch, settings: GrpoSettings) -> list[int]:
    """The rows that have anything to teach: all, unless a group's rewards are equal.

    Such a group's advantages are 0, so it is left with its KL and entropy terms.
    """
    other_terms = settings.kl_beta != 0 or settings.entropy_coefficient != 0
    if other_terms and settings.zero_variance == "kl":
        return list(range(batch.rows))
    idle = zero_variance(batch.rewards).repeat_interleave(batch.group_size).tolist()
    return [row for row in range(batch.rows) if not idle[row]]


def _targets(batch: Batch, settings: GrpoSettings, device: torch.device) -> Targets:
    """The whole batch's targets (B T,); `old` and `reference` are filled in later."""
    width = batch.width

    def of_rows(values: Tensor) -> Tensor:
        return values.repeat_interleave(width).to(device)

    behaviour = batch.behaviour.flatten().to(device)
    return Targets(
        advantages=of_rows(batch.advantages),
        weights=token_weights(batch.response_mask, settings.loss_aggregation).flatten().to(device),
        old=torch.zeros_like(behaviour),
        donated=of_rows(batch.donated),
        behaviour=behaviour,
        reference=torch.zeros_like(behaviour) if settings.kl_beta else None,
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
