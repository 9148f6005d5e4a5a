"""One organisation's local training: rounds of private and public GRPO steps. No I/O.

Every random draw is a function of (run seed, client, round, step), so that a step done again
after a restart gives the same numbers.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from pubswap_client.policy.groups import Group, collate
from pubswap_client.policy.logprobs import choose
from pubswap_client.policy.policy import Policy, copy_to_host
from pubswap_client.rollout.transformers_engine import RolloutEngine
from pubswap_client.training.memory import TokenBudget
from pubswap_client.training.metrics import StepMetrics
from pubswap_client.training.team import SINGLE, Team
from pubswap_client.training.update import update
from pubswap_protocol.draws import seed_for
from pubswap_protocol.errors import WrongState
from pubswap_protocol.problems import Problem
from pubswap_protocol.schedule import private_batch, staleness
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import Adapter, AdapterSource
from pubswap_protocol.tensors.responses import Offer, Response

Scorer = Callable[[Sequence[tuple[str, Problem]]], list[float]]
Groups = Sequence[Sequence[Response]]


def score_groups(
    scorer: Scorer,
    decode: Callable[[Sequence[Response]], list[str]],
    problems: Sequence[Problem],
    groups: Groups,
) -> list[list[float]]:
    """The rewards of each problem's responses, all scored in one call."""
    texts = iter(decode([response for group in groups for response in group]))
    cases = [
        (next(texts), problem)
        for problem, group in zip(problems, groups, strict=True)
        for _ in group
    ]
    rewards = iter(scorer(cases))
    return [[next(rewards) for _ in group] for group in groups]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The factors, and by their names AdamW's `step` (), `exp_avg` and `exp_avg_sq` (as they)."""

    adapter: Adapter
    optimizer: dict[str, dict[str, NDArray[Any]]]


@dataclass
class LocalTrainer:
    """Trains the policy of `client` on its private problems, and on groups of an exchange."""

    policy: Policy
    engine: RolloutEngine
    settings: RunSettings
    client: str
    problems: Sequence[Problem]
    scorer: Scorer
    budget: TokenBudget
    checkpointing: bool = False
    team: Team = SINGLE
    max_mismatch: float | None = None
    round: int = field(default=0, init=False)
    rollout_seconds: float = field(default=0.0, init=False)
    _optimizer: torch.optim.Optimizer | None = field(default=None, init=False)
    _round_start: list[Tensor] = field(default_factory=list, init=False)
    _own_rewards: list[list[float]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Raises InvalidProblems if a private prompt is too long: now, not within a run."""
        for problem in self.problems:
            self.policy.encode(problem.prompt)

    def rebase(self, residuals: Sequence[AdapterSource]) -> None:
        """Train on the base model with the products of these stacks added; before a round."""
        self.policy.rebase(residuals)

    def begin_round(self, round_: int, adapter: Adapter) -> None:
        """Start from the global adapter, with a new optimizer unless the run keeps it."""
        self.round = round_
        self.policy.load_adapter(adapter)
        self._round_start = [factor.detach().clone() for factor in self.policy.trainable()]
        if self._optimizer is None or self.settings.grpo.optimizer_state == "reset":
            self._optimizer = self._new_optimizer()

    def snapshot(self) -> Snapshot:
        """A copy of the factors and of the optimizer's state."""
        if self._optimizer is None:
            raise WrongState("A snapshot was asked for before a round began.")
        names, states = self.policy.trained_names(), self._optimizer.state_dict()["state"]
        flat = {(index, key): value for index in states for key, value in states[index].items()}
        optimizer: dict[str, dict[str, NDArray[Any]]] = {names[index]: {} for index in states}
        for (index, key), array in copy_to_host(flat).items():
            optimizer[names[index]][key] = array
        return Snapshot(self.adapter(), optimizer)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot. FedProx still holds on to the adapter of `begin_round`."""
        self.policy.load_adapter(snapshot.adapter)
        self._optimizer = self._new_optimizer()
        states = {
            index: {key: torch.tensor(array) for key, array in snapshot.optimizer[name].items()}
            for index, name in enumerate(self.policy.trained_names())
            if name in snapshot.optimizer
        }
        # The learning rate and the like stay as the settings say.
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": states, "param_groups": groups})

    def private_step(self, step: int) -> StepMetrics:
        """Local step 1..tau of the round on the next private problems."""
        started = time.monotonic()
        indices = private_batch(self.settings, self.client, len(self.problems), self.round, step)
        problems = [self.problems[index] for index in indices]
        groups = self._rollout(step, problems)
        rewards = self._rewards(problems, groups)
        metrics = self._update(problems, groups, rewards, self.max_mismatch)
        return replace(metrics, seconds=time.monotonic() - started)

    def public_rollout(self, step: int, problems: Sequence[Problem]) -> list[list[Response]]:
        """Our own K responses to each public problem: what the exchange asks for."""
        started = time.monotonic()
        groups = self._rollout(step, problems)
        self._own_rewards = self._rewards(problems, groups)
        self.rollout_seconds = time.monotonic() - started
        return groups

    def resume_rollout(self, problems: Sequence[Problem], groups: Groups, seconds: float) -> None:
        """Take up our own responses of an earlier process, whose rollout took these seconds."""
        self._own_rewards = self._rewards(problems, groups)
        self.rollout_seconds = seconds

    def choose(self, problems: Sequence[Problem], offers: Sequence[Offer]) -> list[list[Response]]:
        """The groups of an exchange's offers, chosen by what our policy finds most likely."""
        return [
            choose(self.policy, self.policy.encode(problem.prompt), offer, self.budget.tokens)
            for problem, offer in zip(problems, offers, strict=True)
        ]

    def public_step(self, step: int, problems: Sequence[Problem], groups: Groups) -> StepMetrics:
        """Local step `step` on the groups that the exchange gave, rewarded anew.

        The reward reported is that of our own responses before the exchange, and waiting for
        peers does not count as our seconds.
        """
        started = time.monotonic()
        stale = staleness(self.settings, step)
        metrics = self._update(
            problems,
            groups,
            self._rewards(problems, groups),
            # An update lies between sampling and now: the engine served what it should have.
            max_mismatch=None if stale else self.max_mismatch,
        )
        own = [reward for rewards in self._own_rewards for reward in rewards]
        return replace(
            metrics,
            staleness=stale,
            reward=sum(own) / len(own) if own else metrics.reward,
            seconds=time.monotonic() - started + self.rollout_seconds,
        )

    def adapter(self) -> Adapter:
        """A copy of the current factors."""
        return self.policy.adapter()

    def _new_optimizer(self) -> torch.optim.Optimizer:
        grpo = self.settings.grpo
        return torch.optim.AdamW(
            self.policy.trainable(),
            lr=grpo.learning_rate,
            weight_decay=grpo.weight_decay,
            fused=True if self.policy.device.type == "cuda" else None,
        )

    def _rollout(self, step: int, problems: Sequence[Problem]) -> list[list[Response]]:
        grpo = self.settings.grpo
        return self.engine.generate(
            [self.policy.encode(problem.prompt) for problem in problems],
            count=grpo.responses_per_prompt,
            max_tokens=grpo.max_response_tokens,
            temperature=grpo.temperature,
            seed=seed_for(self.settings.seed, "rollout", self.client, self.round, step),
        )

    def _rewards(self, problems: Sequence[Problem], groups: Groups) -> list[list[float]]:
        return score_groups(self.scorer, self.policy.decode, problems, groups)

    def _update(
        self,
        problems: Sequence[Problem],
        groups: Groups,
        rewards: Sequence[Sequence[float]],
        max_mismatch: float | None,
    ) -> StepMetrics:
        if self._optimizer is None:
            raise WrongState("A step was asked for before a round began.")
        batch = collate(
            [
                Group(self.policy.encode(problem.prompt), group, scores)
                for problem, group, scores in zip(problems, groups, rewards, strict=True)
            ],
            self.policy.card.eos_token_ids,
            self.settings.grpo.advantage_epsilon,
        )
        return update(
            self.policy,
            self._optimizer,
            batch,
            self.settings,
            self._round_start,
            self.budget,
            self.checkpointing,
            self.team,
            max_mismatch,
        )
