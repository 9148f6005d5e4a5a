"""`reasoning_gym:<task>`: a reasoning-gym task's own verifier.

Some tasks evaluate an answer, or a part of a problem, as Python. Here they parse only literals, or
receive only arithmetic: no other names, no strings and no attributes.
"""

import ast
import re
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Annotated, Any

from pydantic import Field

from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.extract import extract_answer
from pubswap_protocol.verifiers.verifier import VERIFIERS, ShorthandVerifier

_FULL_SCORE = 1.0 - 1e-9

# These tasks parse lists with `eval`.
_LISTS = (
    "algorithmic.binary_matrix",
    "algorithmic.number_sorting",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "games.n_queens",
)
# These tasks calculate with `eval`, or with sympy's `parse_expr`, which calls it.
_CALCULATED = {
    "bitwise_arithmetic",
    "countdown",
    "intermediate_integration",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
}
_ARITHMETIC = re.compile(
    r"(?:(?:a?(?:sin|cos|tan)h?|sec|csc|cot|exp|log|ln|sqrt|Abs|pi|Integral|[A-Za-z])\b"
    r"|0x[\dA-Fa-f]+|\d|\.(?!\s*[A-Za-z])|[\s+*/%^(),!<>-])*+",
    re.ASCII,
)


@VERIFIERS.register
class ReasoningGym(ShorthandVerifier):
    """Correct if the task's `score_answer` gives the extracted answer its full score."""

    name = "reasoning_gym"
    library = "reasoning-gym"

    task: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,64}$")]

    def score(self, response: str, problem: Problem) -> float:
        answer, metadata = extract_answer(response), problem.metadata
        if self.task in _CALCULATED:
            texts = (answer, problem.answer, metadata.get("integrand"), metadata.get("problem"))
            if not all(_ARITHMETIC.fullmatch(str(text or "")) for text in texts):
                return 0.0
        entry = {"question": problem.question, "answer": problem.answer, "metadata": metadata}
        scored = _dataset(self.task).score_answer(answer=answer, entry=entry)
        return float(scored >= _FULL_SCORE)

    def check(self) -> None:
        """Raises InvalidSettings unless reasoning-gym has the task."""
        _dataset(self.task)


@cache
def library() -> Any:
    """Import reasoning-gym, which takes a second; raises InvalidSettings if it is not installed."""
    if find_spec("reasoning_gym") is None:
        raise InvalidSettings(
            "reasoning-gym is not installed. Install it without the one dependency that needs a C "
            "compiler: pip install --no-deps reasoning-gym, and in PubSwap's folder: "
            "pip install '.[tasks]'"
        )
    if sys.modules.get("pycosat") is None and find_spec("pycosat") is None:
        sys.modules["pycosat"] = _without_solver()
    with warnings.catch_warnings():
        # One of its dependencies warns where its bytecode is not made at installation, as by uv.
        warnings.simplefilter("ignore", SyntaxWarning)
        import reasoning_gym

    for name in _LISTS:
        vars(import_module(f"reasoning_gym.{name}"))["eval"] = ast.literal_eval
    return reasoning_gym


def _without_solver() -> ModuleType:
    """A stand-in for pycosat, which only one task needs and which comes only as C source."""

    def itersolve(clauses: object) -> Iterator[object]:
        raise InvalidSettings(
            "reasoning-gym's task zebra_puzzles needs pycosat: pip install pycosat, which needs a "
            "C compiler."
        )

    module = ModuleType("pycosat")
    module.itersolve = itersolve  # type: ignore[attr-defined]
    return module


@cache
def _dataset(task: str) -> Any:
    try:
        return library().create_dataset(task, size=1, seed=0)
    except (ValueError, AssertionError):  # `composite` consists of other tasks, and has none here
        raise InvalidSettings(f"reasoning-gym has no task {task!r} of its own.") from None
