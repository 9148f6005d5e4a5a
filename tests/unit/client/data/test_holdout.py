"""Held-out problems: an exact, stable split that never holds out a problem already trained on."""

import random

from pubswap_client.data.holdout import split
from pubswap_protocol.problems import Problem


def numbered(first: int, count: int) -> list[Problem]:
    return [
        Problem(id=f"p{n}", prompt=f"{n} =", answer=str(n)) for n in range(first, first + count)
    ]


def ids(problems: list[Problem]) -> list[str]:
    return [problem.id for problem in problems]


def test_a_split_is_the_same_after_every_start() -> None:
    """The order of the file does not matter, and later versions must choose the same problems."""
    problems = numbered(0, 50)
    trained, held_out = split(problems, 4)
    assert ids(held_out) == ["p1", "p12", "p13", "p14"]
    assert sorted(ids(trained + held_out)) == sorted(ids(problems))
    random.Random(1).shuffle(problems)
    assert set(ids(split(problems, 4)[1])) == set(ids(held_out))
    assert split(problems, 0) == (problems, [])
    assert split(problems, 50) == ([], problems)


def test_adding_problems_holds_out_none_that_was_trained_on() -> None:
    """Only new problems may be held out later; copies of a prompt stay on one side."""
    few, many = numbered(0, 40), numbered(0, 400)
    before, after = split(few, 10), split(many, 10)
    assert not {*ids(before[0])} & {*ids(after[1])}
    twice = [*few, *(problem.model_copy(update={"id": f"again-{problem.id}"}) for problem in few)]
    trained, held_out = split(twice, 10)
    assert len(held_out) == 20
    assert not {problem.prompt for problem in trained} & {problem.prompt for problem in held_out}
