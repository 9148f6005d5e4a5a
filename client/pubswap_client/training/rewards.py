"""Rewards: the run's verifier, given from outside, on the decoded responses."""

from collections.abc import Callable, Sequence

from pubswap_protocol.problems import Problem
from pubswap_protocol.responses import Response

Scorer = Callable[[Sequence[tuple[str, Problem]]], list[float]]
Decoder = Callable[[Sequence[Response]], list[str]]


def score_groups(
    scorer: Scorer,
    decode: Decoder,
    problems: Sequence[Problem],
    groups: Sequence[Sequence[Response]],
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
