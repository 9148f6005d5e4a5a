"""`reasoning_gym:<task>`: a reasoning-gym task's own verifier."""

import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from types import ModuleType
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
def library() -> Any:
    """Import reasoning-gym, which takes a second; raises InvalidSettings if it is not installed."""
    if find_spec("reasoning_gym") is None:
        raise InvalidSettings(
            "reasoning-gym is not installed. Install it without the one dependency that needs a C "
            "compiler: pip install --no-deps reasoning-gym, and in PubSwap's folder: "
            "pip install '.[tasks]'"
        )
    if find_spec("pycosat") is None:
        sys.modules["pycosat"] = _without_solver()
    import reasoning_gym

    return reasoning_gym


def _without_solver() -> ModuleType:
    """A stand-in for pycosat, which one task needs and which comes as C source only."""

    def itersolve(clauses: object) -> Iterator[object]:
        raise InvalidSettings(
            "reasoning-gym's task zebra_puzzles needs pycosat: pip install pycosat, which takes a "
            "C compiler."
        )

    module = ModuleType("pycosat")
    module.itersolve = itersolve  # type: ignore[attr-defined]
    return module


@cache
def _dataset(task: str) -> Any:
    try:
        return library().create_dataset(task, size=1, seed=0)
    except ValueError:
        raise InvalidSettings(f"reasoning-gym has no task {task!r}.") from None
