"""Held-out private problems, which are never trained on: a pure function of their prompts."""

from collections.abc import Sequence

from pubswap_protocol.draws import seed_for
from pubswap_protocol.problems import Problem


def split(problems: Sequence[Problem], count: int) -> tuple[list[Problem], list[Problem]]:
    """The problems to train on, and the held-out problems of `count` prompts, each in order.

    Holds out the prompts with the lowest hashes, so that the split is the same after every start
    and in every run. Adding problems never moves a trained problem to the held-out ones.
    """
    hashes = {problem.prompt: seed_for("held out", problem.text) for problem in problems}
    out = set(sorted(hashes, key=hashes.__getitem__)[:count])
    return (
        [problem for problem in problems if problem.prompt not in out],
        [problem for problem in problems if problem.prompt in out],
    )
