"""One organisation's local training: rounds of private and public GRPO steps. No I/O.

Every random draw is a function of (run seed, client, round, step), so a step repeated after a
restart gives the same numbers.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pubswap_client.policy.groups import Group, collate
from pubswap_client.policy.policy import copy_to_host
from pubswap_client.rollout.transformers_engine import RolloutEngine, SamplingParameters
from pubswap_client.training.evidence import response_evidence
from pubswap_client.training.metrics import StepMetrics
from pubswap_client.training.privacy import PrivateDraws, StepNoise
from pubswap_client.training.private_rollout import PrivateGroup, PrivateRollout, sample_private
from pubswap_client.training.update import UpdateContext, update
from pubswap_protocol.draws import response_seed, seed_for
from pubswap_protocol.errors import EngineFault, WrongState
from pubswap_protocol.problems import Problem
from pubswap_protocol.schedule import private_position, private_prompts, staleness
from pubswap_protocol.settings import GrpoSettings, RunSettings
from pubswap_protocol.tensors.adapter import Adapter, AdapterSource
from pubswap_protocol.tensors.response_form import ResponseForm
from pubswap_protocol.tensors.responses import Response

log = logging.getLogger(__name__)

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


def check_sampled(form: ResponseForm, groups: Groups) -> None:
    """Raises EngineFault unless an engine's responses are responses: what is judged is trained."""
    flat = [response.tokens for group in groups for response in group]
    lengths = np.array([len(tokens) for tokens in flat])
    if flat and (fault := form.fault(np.concatenate(flat), lengths)):
        raise EngineFault(f"The rollout engine gave what is not a response. {fault}")


def seeded(groups: Groups, seed: int) -> list[list[Response]]:
    """The responses with their noise seeds set, for a step with this sampling seed."""
    return [
        [
            replace(response, seed=response_seed(seed, prompt, index))
            for index, response in enumerate(group)
        ]
        for prompt, group in enumerate(groups)
    ]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The factors, and AdamW's state as `step/NAME` (), `exp_avg/NAME` and `exp_avg_sq/NAME`.

    It also holds everything else that later private steps depend on.
    """

    adapter: Adapter
    optimizer: dict[str, NDArray[Any]]
    resampled: int = 0  # prompts taken by resampling in all steps made, in the whole run
    beginning: int = 0  # number of this beginning of a round in the whole run, if it is private


@dataclass
class LocalTrainer:
    """Trains the policy of `client` on its private problems, and on groups of an exchange.

    A member may have its own rank, and its own b and K for private steps.
    """

    updates: UpdateContext
    engine: RolloutEngine
    client: str
    problems: Sequence[Problem]
    scorer: Scorer
    max_mismatch: float | None = None
    privacy: PrivateDraws | None = None
    own_grpo: GrpoSettings | None = None
    round: int = field(default=0, init=False)
    _optimizer: torch.optim.Optimizer = field(init=False)
    _round_start: list[Tensor] = field(default_factory=list, init=False)
    _rollout_seconds: float = field(default=0.0, init=False)
    _own_rewards: list[list[float]] = field(default_factory=list, init=False)
    _resampled: int = field(default=0, init=False)
    _beginning: int = field(default=0, init=False)
    _verifying: float = field(default=0.0, init=False)  # seconds, in this private step
    _gumbel: bool | None = field(default=None, init=False)
    _private: RunSettings = field(init=False)

    def __post_init__(self) -> None:
        """Raises InvalidProblems if a private prompt is too long: now rather than during a run."""
        self.policy = self.updates.policy
        self.settings = self.policy.settings
        if (self.settings.privacy is None) != (self.privacy is None):
            raise WrongState("Private draws must be given if and only if privacy.epsilon is set.")
        for problem in self.problems:
            self.policy.encode(problem.prompt)
        grpo = self.own_grpo or self.settings.grpo
        self._private = self.settings.model_copy(update={"grpo": grpo})
        self._optimizer = self._new_optimizer()

    def rebase(self, adapters: Sequence[AdapterSource]) -> None:
        """Add the products of these adapters to the base model. Call before a round."""
        self.policy.rebase(adapters)

    def begin_round(
        self, round_: int, adapter: Adapter, beginning: int = 0, rolled_back: bool = False
    ) -> None:
        """Start from the global adapter, with a new optimizer unless the run keeps it.

        No two private rounds may have the same `beginning`, because noise and batches come from
        it. The optimizer is not kept if the run was `rolled_back` since.
        """
        self.round = round_
        self._beginning = beginning
        self.policy.load_adapter(adapter)
        self._round_start = [factor.detach().clone() for factor in self.policy.trainable()]
        if rolled_back or self.settings.grpo.optimizer_state != "keep":
            self._optimizer = self._new_optimizer()

    def pass_at_1(self, adapter: Adapter, problems: Sequence[Problem]) -> float:
        """Mean reward of one response to each problem; leaves this adapter in the policy.

        The random draws are the same for each adapter.
        """
        self.policy.load_adapter(adapter)
        seed = seed_for(self.settings.seed, "held out", self.client)
        groups = self._rollout(problems, seed, 1, self.settings.evaluation.temperature)
        rewards = self.score(problems, groups)
        return fmean(self.settings.is_correct(reward) for (reward,) in rewards)

    def snapshot(self) -> Snapshot:
        """Copy the factors and the optimizer's state."""
        names, states = self.policy.trained_names(), self._optimizer.state_dict()["state"]
        optimizer = copy_to_host(
            {f"{key}/{names[i]}": value for i in states for key, value in states[i].items()}
        )
        return Snapshot(self.adapter(), optimizer, self._resampled, self._beginning)

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot. FedProx stays anchored to the adapter of `begin_round`."""
        self.policy.load_adapter(snapshot.adapter)
        self._resampled, self._beginning = snapshot.resampled, snapshot.beginning
        indices = {name: index for index, name in enumerate(self.policy.trained_names())}
        states: dict[int, dict[str, Tensor]] = defaultdict(dict)
        for path, array in snapshot.optimizer.items():
            key, _, name = path.partition("/")
            states[indices[name]][key] = torch.tensor(array)
        # The learning rate and other hyperparameters come from the settings.
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": states, "param_groups": groups})

    def private_step(self, step: int) -> StepMetrics:
        """Run local step 1..tau of the round on the next private problems.

        The reported reward is that of the step's prompts before resampling.
        """
        started, self._verifying = time.monotonic(), 0.0
        rollout = self._private_rollout(step)
        self._resampled += rollout.sampled - len(rollout.groups)
        sampled = time.monotonic()
        metrics = self.update_policy(
            [self.problems[group.problem] for group in rollout.groups],
            [group.responses for group in rollout.groups],
            [group.rewards for group in rollout.groups],
            self.max_mismatch,
            noise=self.privacy.noise(*self._key(step)) if self.privacy else None,
        )
        return replace(
            metrics,
            reward=rollout.reward,
            prompts_sampled=rollout.sampled,
            groups_replaced=rollout.replaced,
            sampling=sampled - started,
            verifying=self._verifying,
            seconds=time.monotonic() - started,
        )

    def public_rollout(
        self, step: int, problems: Sequence[Problem], sampling_seed: int | None = None
    ) -> list[list[Response]]:
        """Sample our own K responses to each public problem, for the exchange.

        With a seed from the coordinator, the responses carry their noise seeds, provided that the
        engine samples with that noise.
        """
        started = time.monotonic()
        seed = self._seed(step) if sampling_seed is None else sampling_seed
        grpo, checked = self.settings.grpo, sampling_seed is not None
        groups = self._rollout(problems, seed, grpo.responses_per_prompt, grpo.temperature, checked)
        if sampling_seed is not None and self._draws_by_noise(problems, groups, sampling_seed):
            groups = seeded(groups, sampling_seed)
        self._own_rewards = self.score(problems, groups)
        self._rollout_seconds = time.monotonic() - started
        return groups

    def resume_rollout(self, problems: Sequence[Problem], groups: Groups) -> None:
        """Resume with our own responses from an earlier process, without counting its time."""
        self._own_rewards = self.score(problems, groups)
        self._rollout_seconds = 0.0

    def score(self, problems: Sequence[Problem], groups: Groups) -> list[list[float]]:
        """The rewards of each problem's responses, by our own verifier."""
        return score_groups(self.scorer, self.policy.decode, problems, groups)

    def public_step(self, step: int, problems: Sequence[Problem], groups: Groups) -> StepMetrics:
        """Run local step `step` on the groups from the exchange, with rewards computed again.

        The reported reward is that of our own responses before the exchange, and the seconds
        exclude waiting for peers.
        """
        started = time.monotonic()
        stale = staleness(self.settings, step)
        rewards = self.score(problems, groups)
        # If stale, an update since sampling explains any mismatch.
        max_mismatch = None if stale else self.max_mismatch
        metrics = self.update_policy(problems, groups, rewards, max_mismatch)
        own_rewards = [reward for rewards in self._own_rewards for reward in rewards]
        return replace(
            metrics,
            staleness=stale,
            reward=sum(own_rewards) / len(own_rewards) if own_rewards else metrics.reward,
            sampling=self._rollout_seconds,
            seconds=time.monotonic() - started + self._rollout_seconds,
        )

    def adapter(self) -> Adapter:
        return self.policy.adapter()

    def _new_optimizer(self) -> torch.optim.Optimizer:
        grpo = self.settings.grpo
        return torch.optim.AdamW(
            self.policy.trainable(),
            lr=grpo.learning_rate,
            weight_decay=grpo.weight_decay,
            fused=True if self.policy.device.type == "cuda" else None,
        )

    def _private_rollout(self, step: int) -> PrivateRollout:
        """Sample and reward the groups of a private step, replacing dead ones."""
        if self.privacy is not None:
            return self._poisson_rollout(step, self.privacy)
        first = private_position(self._private, self.round, step) + self._resampled
        drawn = 0

        def draw(number: int, count: int) -> list[PrivateGroup]:
            nonlocal drawn
            indices = private_prompts(
                self.settings, self.client, len(self.problems), first + drawn, count
            )
            drawn += count
            key = ("resample", number) if number else ()
            return self._private_groups(indices, self._seed(step, *key))

        grpo = self._private.grpo
        return sample_private(draw, grpo.prompts_per_step, grpo.resample, len(self.problems))

    def _poisson_rollout(self, step: int, privacy: PrivateDraws) -> PrivateRollout:
        """Sample the groups of a step with privacy: as many as are drawn, possibly none."""
        key = self._key(step)
        indices = privacy.batch(len(self.problems), *key)
        groups = self._private_groups(indices, privacy.rollout_seed(*key)) if indices else []
        return sample_private(lambda *_: groups, len(indices), draws=0, available=0)

    def _key(self, step: int) -> tuple[int, ...]:
        """A key unique to the step in the run, even if it is repeated after a rollback."""
        return self._beginning, self.round, step

    def _private_groups(self, indices: Sequence[int], seed: int) -> list[PrivateGroup]:
        problems = [self.problems[index] for index in indices]
        count, temperature = self._private.grpo.responses_per_prompt, self.settings.grpo.temperature
        groups = self._rollout(problems, seed, count, temperature)
        began = time.monotonic()
        rewards = self.score(problems, groups)
        self._verifying += time.monotonic() - began
        return [PrivateGroup(*group) for group in zip(indices, groups, rewards, strict=True)]

    def _seed(self, step: int, *draw: int | str) -> int:
        """The seed of a step's responses; `draw` distinguishes further draws from the first."""
        return seed_for(self.settings.seed, "rollout", self.client, self.round, step, *draw)

    def _draws_by_noise(self, problems: Sequence[Problem], groups: Groups, seed: int) -> bool:
        """Whether the engine samples with the seeds' noise; tested once, on one prompt's group.

        The transformers engine is known to. vLLM does on a GPU, in the versions that we have read.
        A sharded policy cannot be tested outside an update.
        """
        if self._gumbel is None and self.max_mismatch is not None:
            self._gumbel = not self.policy.sharded and self._sampled_by(problems, groups, seed)
            if not self._gumbel:
                log.info("Peers cannot verify this engine's responses: sent as unverified.")
        return self._gumbel is not False

    def _sampled_by(self, problems: Sequence[Problem], groups: Groups, seed: int) -> bool:
        prompt = self.policy.encode(problems[0].prompt)
        group = Group(prompt, seeded(groups, seed)[0], [0.0] * len(groups[0]))
        temperature = self.settings.grpo.temperature
        tokens = self.updates.budget.tokens
        evidence = response_evidence(self.policy, collate([group]), temperature, tokens)
        return float(evidence.sum()) < 0

    def _rollout(
        self,
        problems: Sequence[Problem],
        seed: int,
        count: int,
        temperature: float,
        gumbel: bool = False,
    ) -> list[list[Response]]:
        tokens = self.settings.grpo.max_response_tokens
        sampling = SamplingParameters(count, tokens, temperature, seed, gumbel)
        prompts = [self.policy.encode(problem.prompt) for problem in problems]
        groups = self.engine.generate(prompts, sampling)
        check_sampled(self.policy.form, groups)
        return groups

    def update_policy(
        self,
        problems: Sequence[Problem],
        groups: Groups,
        rewards: Sequence[Sequence[float]],
        max_mismatch: float | None,
        noise: StepNoise | None = None,
    ) -> StepMetrics:
        batch = collate(
            [
                Group(self.policy.encode(problem.prompt), group, scores)
                for problem, group, scores in zip(problems, groups, rewards, strict=True)
            ],
            self.settings.grpo.advantage,
        )
        return update(
            self.updates,
            self._optimizer,
            batch,
            self._round_start,
            max_mismatch=max_mismatch,
            noise=noise,
        )
