"""pass@1: the share of sampled answers that are right."""

from collections import defaultdict
from collections.abc import Sequence

from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.transformers_engine import RolloutEngine
from pubswap_client.training.trainer import Scorer, score_groups
from pubswap_protocol.draws import seed_for
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings


def pass_at_1(
    policy: Policy,
    engine: RolloutEngine,
    problems: Sequence[Problem],
    scorer: Scorer,
    settings: RunSettings,
    seed: int,
) -> tuple[float, dict[str, float]]:
    """The mean reward over all problems, and by topic; `evaluation.samples` for each problem."""
    by_topic: dict[str, list[float]] = defaultdict(list)
    evaluation = settings.evaluation
    for start in range(0, len(problems), evaluation.batch_size):
        part = problems[start : start + evaluation.batch_size]
        groups = engine.generate(
            [policy.encode(problem.prompt) for problem in part],
            count=evaluation.samples,
            max_tokens=settings.grpo.max_response_tokens,
            temperature=evaluation.temperature,
            seed=seed_for(seed, "batch", start),
        )
        rewards = score_groups(scorer, policy.decode, part, groups)
        for problem, scores in zip(part, rewards, strict=True):
            by_topic[problem.topic] += scores
    everything = [score for scores in by_topic.values() for score in scores]
    return _mean(everything), {topic: _mean(by_topic[topic]) for topic in sorted(by_topic)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
