"""`reasoning_gym:<task>`: a reasoning-gym task's own verifier."""

from functools import cache
from typing import Any

from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.extract import extract_answer

_FULL_SCORE = 1.0 - 1e-9


def score_reasoning(task: str, response: str, problem: Problem) -> float:
    """1.0 if the task's `score_answer` gives the extracted answer its full score."""
    entry = {"question": problem.prompt, "answer": problem.answer, "metadata": problem.metadata}
    scored = _dataset(task).score_answer(answer=extract_answer(response), entry=entry)
    return float(scored >= _FULL_SCORE)


def check_task(task: str) -> None:
    """Raises InvalidSettings unless reasoning-gym has the task."""
    _dataset(task)


@cache
def _dataset(task: str) -> Any:
    # Importing it takes a second, for it brings all its generators.
    import reasoning_gym

    try:
        return reasoning_gym.create_dataset(task, size=1, seed=0)
    except ValueError:
        raise InvalidSettings(f"reasoning-gym has no task {task!r}.") from None
