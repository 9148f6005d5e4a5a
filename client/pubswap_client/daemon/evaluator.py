"""The evaluator: pass@1 of each round's global adapter on the coordinator's test set."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import Pace
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.transformers_engine import RolloutEngine, SamplingParameters
from pubswap_client.state.residuals import Residuals
from pubswap_client.training.trainer import Scorer, check_sampled, score_groups
from pubswap_protocol.draws import seed_for
from pubswap_protocol.errors import IdempotencyMismatch, NotFound, WrongState
from pubswap_protocol.messages import Evaluation, RunState, RunView, Task, TaskKind
from pubswap_protocol.problems import Problem
from pubswap_protocol.tensors.adapter import Adapter, AdapterFile, decode_adapter

log = logging.getLogger(__name__)

PassAt1 = Callable[[Adapter, Sequence[AdapterFile]], tuple[float, dict[str, float]]]


@dataclass
class Evaluator:
    """A member that evaluates and does not train.

    `pass_at_1` maps an adapter and the residuals below it to (overall, by topic).
    """

    api: CoordinatorClient
    run: RunView
    problems: int
    pass_at_1: PassAt1
    residuals: Residuals

    def work(self) -> RunState:
        """Evaluate until the run has ended; returns its final state.

        Rounds that a finished run has not evaluated yet come first.
        """
        pace = Pace()
        while True:
            task = self.api.task(self.run.id)
            if task.kind is TaskKind.FINISHED:
                log.info("The run is %s.", task.state)
                return task.state
            if task.kind is TaskKind.EVALUATE:
                try:
                    self.evaluate(task)
                    pace.renew()
                    continue
                # The run was rolled back meanwhile, or another evaluator was first.
                except (NotFound, IdempotencyMismatch) as error:
                    log.warning("Skipping round %d: %s", task.round, error.detail)
            pace.idle()

    def evaluate(self, task: Task) -> None:
        if task.adapter is None:
            raise WrongState("The coordinator gave an evaluation task without an adapter.")
        started = time.monotonic()
        layout = self.run.model.layout
        data = self.api.blob(self.run.id, task.adapter, max_bytes=layout.file_bytes)
        adapter = decode_adapter(layout, data)
        residuals = self.residuals.files(task.residuals, task.round)
        overall, by_topic = self.pass_at_1(adapter, residuals)
        evaluation = Evaluation(
            pass_at_1=overall,
            by_topic=by_topic,
            problems=self.problems,
            seconds=time.monotonic() - started,
        )
        # Ask again, because a score counts for its round even if a rollback has since given the
        # round another adapter.
        asked = self.api.task(self.run.id, 0)
        if (asked.kind, asked.round, asked.adapter) != (task.kind, task.round, task.adapter):
            log.warning("Round %d: the evaluation is no longer needed.", task.round)
            return
        self.api.submit_evaluation(self.run.id, task.round, evaluation)
        log.info("Round %d: pass@1 %.3f on %d problems.", task.round, overall, self.problems)


def pass_at_1(
    policy: Policy, engine: RolloutEngine, problems: Sequence[Problem], scorer: Scorer, seed: int
) -> tuple[float, dict[str, float]]:
    """The mean reward, overall and by topic, of `evaluation.samples` responses a problem."""
    by_topic: dict[str, list[float]] = defaultdict(list)
    rewards = rewards_of(policy, engine, problems, scorer, seed)
    for problem, scores in zip(problems, rewards, strict=True):
        by_topic[problem.topic] += scores
    everything = [score for scores in by_topic.values() for score in scores]
    return fmean(everything), {topic: fmean(by_topic[topic]) for topic in sorted(by_topic)}


def rewards_of(
    policy: Policy, engine: RolloutEngine, problems: Sequence[Problem], scorer: Scorer, seed: int
) -> list[list[float]]:
    """The rewards (P, S) of `evaluation.samples` responses to each problem."""
    rewards: list[list[float]] = []
    grpo, evaluation = policy.settings.grpo, policy.settings.evaluation
    for start in range(0, len(problems), evaluation.batch_size):
        part = problems[start : start + evaluation.batch_size]
        sampling = SamplingParameters(
            count=evaluation.samples,
            max_tokens=grpo.max_response_tokens,
            temperature=evaluation.temperature,
            seed=seed_for(seed, "batch", start),
        )
        groups = engine.generate([policy.encode(problem.prompt) for problem in part], sampling)
        check_sampled(policy.form, groups)
        rewards += score_groups(scorer, policy.decode, part, groups)
    return rewards
