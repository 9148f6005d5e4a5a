"""The evaluator: pass@1 of each round's global adapter on the coordinator's test set.

With it come some of the responses, so that the operator sees what the policy does, and a warning
if right answers look like no answers.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from statistics import fmean

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import PollThrottle
from pubswap_client.daemon.suspicion import suspicion
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.transformers_engine import RolloutEngine, SamplingParameters
from pubswap_client.training.trainer import check_sampled
from pubswap_protocol.bounds import MAX_SHOWN, MAX_SHOWN_BYTES, MAX_SHOWN_TEXT
from pubswap_protocol.command_line.progress_bar import LogThrottle
from pubswap_protocol.draws import seed_for
from pubswap_protocol.errors import IdempotencyMismatch, NotFound, WrongState
from pubswap_protocol.messages import (
    FullEvaluation,
    JudgedResponse,
    RunState,
    RunView,
    Task,
    TaskKind,
)
from pubswap_protocol.problems import Problem
from pubswap_protocol.tensors.adapter import Adapter, decode_adapter
from pubswap_protocol.verifiers.confined.worker import Scored

log = logging.getLogger(__name__)

SHOWN = 10  # responses of a topic
CUT = " [...] "


@dataclass(frozen=True, slots=True)
class Judged:
    """A response's text with its problem, its score, and whether that is correct."""

    case: tuple[str, Problem]
    scored: Scored
    right: bool

    @property
    def topic(self) -> str:
        return self.case[1].topic


Judging = Callable[[Sequence[tuple[str, Problem]]], Sequence[Scored]]
Judge = Callable[[Adapter], list[list[Judged]]]


@dataclass
class Evaluator:
    """A member that evaluates and does not train.

    `judge` maps an adapter to judged responses to each problem.
    """

    api: CoordinatorClient
    run: RunView
    judge: Judge

    def work(self) -> RunState:
        """Evaluate until the run has ended; returns its final state.

        Rounds that a finished run has not evaluated yet come first.
        """
        throttle = PollThrottle()
        while True:
            task = self.api.task(self.run.id)
            if task.kind is TaskKind.FINISHED:
                log.info("The run is %s.", task.state)
                return task.state
            if task.kind is TaskKind.EVALUATE:
                try:
                    self.evaluate(task)
                    throttle.reset()
                    continue
                # The run was rolled back meanwhile, or another evaluator was first.
                except (NotFound, IdempotencyMismatch) as error:
                    log.warning("Skipping round %d: %s", task.round, error.detail)
            throttle.idle()

    def evaluate(self, task: Task) -> None:
        if task.adapter is None:
            raise WrongState("The coordinator gave an evaluation task without an adapter.")
        started = time.monotonic()
        layout = self.run.model.layout
        data = self.api.blob(self.run.id, task.adapter, max_bytes=layout.file_bytes)
        adapter = decode_adapter(layout, data)
        judged = self.judge(adapter)
        overall, by_topic = pass_at_1(judged)
        score, parts = mean_scores([each.scored for each in chain(*judged)])
        right = [each.case for each in chain(*judged) if each.right]
        evaluation = FullEvaluation(
            pass_at_1=overall,
            by_topic=by_topic,
            score=score,
            parts=parts,
            problems=len(judged),
            seconds=time.monotonic() - started,
            warning=suspicion(right, self.run.settings.verifier),
            responses=shown(chain(*judged)),
        )
        # Ask again, because a score counts for its round even if a rollback has since given the
        # round another adapter.
        asked = self.api.task(self.run.id, 0)
        if (asked.kind, asked.round, asked.adapter) != (task.kind, task.round, task.adapter):
            log.warning("Round %d: the evaluation is no longer needed.", task.round)
            return
        self.api.submit_evaluation(self.run.id, task.round, evaluation)
        log.info("Round %d: pass@1 %s on %d problems.", task.round, evaluation.figures, len(judged))
        if evaluation.warning is not None:
            log.warning("Round %d: %s.", task.round, evaluation.warning)


def pass_at_1(judged: Sequence[Sequence[Judged]]) -> tuple[float, dict[str, float]]:
    """The share of correct responses, overall and by topic."""
    by_topic: dict[str, list[bool]] = defaultdict(list)
    for each in chain(*judged):
        by_topic[each.topic].append(each.right)
    everything = [right for verdicts in by_topic.values() for right in verdicts]
    return fmean(everything), {topic: fmean(by_topic[topic]) for topic in sorted(by_topic)}


def mean_scores(scored: Sequence[Scored]) -> tuple[float | None, dict[str, float]]:
    """The mean score, None if all are 0 or 1, and the mean scores of parts, by name."""
    scores = [each.score for each in scored]
    by_part: dict[str, list[float]] = defaultdict(list)
    for each in scored:
        for name, score in each.parts.items():
            by_part[name].append(score)
    mean = None if {*scores} <= {0.0, 1.0} else fmean(scores)
    return mean, {name: fmean(part) for name, part in by_part.items()}


def judge(
    policy: Policy, engine: RolloutEngine, problems: Sequence[Problem], scorer: Judging, seed: int
) -> list[list[Judged]]:
    """`evaluation.samples` responses to each problem, with their scores."""
    judged: list[list[Judged]] = []
    grpo, evaluation = policy.settings.grpo, policy.settings.evaluation
    throttle = LogThrottle()
    throttle.printed("")
    for start in range(0, len(problems), evaluation.batch_size):
        if throttle.due(start):
            log.info("Evaluating: %d of %d problems are done.", start, len(problems))
            throttle.printed(start)
        part = problems[start : start + evaluation.batch_size]
        sampling = SamplingParameters(
            count=evaluation.samples,
            max_tokens=grpo.max_response_tokens,
            temperature=evaluation.temperature,
            seed=seed_for(seed, "batch", start),
        )
        groups = engine.generate([policy.encode(problem.prompt) for problem in part], sampling)
        check_sampled(policy.form, groups)
        cases = [
            (text, problem)
            for problem, group in zip(part, groups, strict=True)
            for text in policy.decode(group)
        ]
        scored = [
            Judged(case, each, policy.settings.is_correct(each.score))
            for case, each in zip(cases, scorer(cases), strict=True)
        ]
        one_by_one = iter(scored)
        judged += [list(islice(one_by_one, len(group))) for group in groups]
    return judged


def shown(judged: Iterable[Judged]) -> list[JudgedResponse]:
    """Ten responses of each topic: five right and five wrong if there are, else more of the others.

    They are spread evenly over the test set. Topics come by name, as many as fit.
    """
    by_topic: dict[str, tuple[list[Judged], list[Judged]]] = defaultdict(lambda: ([], []))
    for each in judged:
        by_topic[each.topic][not each.right].append(each)
    responses: list[JudgedResponse] = []
    size = 0
    for _, (right, wrong) in sorted(by_topic.items()):
        count = min(len(right), max(SHOWN // 2, SHOWN - len(wrong)))
        part = [_shown(each) for each in _spread(right, count) + _spread(wrong, SHOWN - count)]
        size += sum(len(each.model_dump_json().encode()) for each in part)
        if size > MAX_SHOWN_BYTES or len(responses) + len(part) > MAX_SHOWN:
            break
        responses += part
    return responses


def _spread(judged: Sequence[Judged], count: int) -> list[Judged]:
    """At most `count` of them, at even distances."""
    count = min(count, len(judged))
    return [judged[number * len(judged) // count] for number in range(count)]


def _shown(judged: Judged) -> JudgedResponse:
    text, problem = judged.case
    prompt, answer, response = map(_cut, (problem.text, problem.answer, text))
    return JudgedResponse(
        topic=judged.topic,
        prompt=prompt,
        answer=answer,
        response=response,
        right=judged.right,
        score=None if judged.scored.score in (0.0, 1.0) else judged.scored.score,
    )


def _cut(text: str) -> str:
    """The beginning and the end of a long text: a response's answer is at its end."""
    if len(text) <= MAX_SHOWN_TEXT:
        return text
    end = MAX_SHOWN_TEXT // 2
    return f"{text[: end - len(CUT)]}{CUT}{text[-end:]}"
