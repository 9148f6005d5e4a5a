"""reasoning-gym's own verifiers, without the Python code that they would run."""

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers import score
from pubswap_protocol.verifiers.reasoning import library
from pubswap_protocol.verifiers.registry import versions_named

LISTS = ("binary_matrix", "number_sorting", "spiral_matrix", "string_insertion", "n_queens")
CALCULATED = (
    "bitwise_arithmetic",
    "countdown",
    "intermediate_integration",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
)
# These only run code that they generated themselves, when they create a problem.
OWN_CODE = ("basic_arithmetic", "codeio", "generators_00_49", "generators_50_99")
PARSER = "propositional_logic"  # has its own parse_expr, which runs nothing


def judged(task: str, answer: str, entry: dict[str, Any]) -> float:
    """The score of an answer to one of the library's problems."""
    problem = Problem(id="1", prompt="?", answer=entry["answer"], metadata=entry["metadata"])
    return score(f"reasoning_gym:{task}", f"<answer>{answer}</answer>", problem)


@pytest.mark.parametrize("task", [*LISTS, *CALCULATED])
def test_no_answer_is_run(task: str, tmp_path: Path) -> None:
    """Neither a plain call, nor one spelled with chr(), nor one without parentheses."""
    entry = library().create_dataset(task, size=1, seed=0)[0]
    made = tmp_path / "made"
    code = f"open({str(made)!r}, 'w')"
    spelt = f"exec({'+'.join(f'chr({ord(character)})' for character in code)})"
    hooked = f"[int[{code!r}] for int.__class_getitem__ in [exec]]"
    for answer in (code, f"[{code}]", spelt, f"({spelt})", hooked, f"S({code!r})"):
        assert judged(task, answer, entry) == 0.0
    assert not made.exists()


@pytest.mark.parametrize("task", [*LISTS, *CALCULATED])
def test_no_part_of_a_problem_is_run(task: str, tmp_path: Path) -> None:
    """Every member judges the coordinator's public problems."""
    entry = library().create_dataset(task, size=1, seed=0)[0]
    made = tmp_path / "made"
    code = f"open({str(made)!r}, 'w')"
    for key, value in entry["metadata"].items():
        if isinstance(value, str):
            judged(task, "1", {**entry, "metadata": {**entry["metadata"], key: code}})
    for answer in ("1", "[1]"):
        judged(task, answer, {**entry, "answer": code})
    assert not made.exists()


@pytest.mark.parametrize("task", [*LISTS, *CALCULATED])
def test_right_answers_are_right(task: str) -> None:
    """The library's own answers get the full score, and a wrong answer gets 0."""
    for entry in library().create_dataset(task, size=5, seed=1):
        assert judged(task, entry["answer"], entry) == 1.0
        assert judged(task, "1", entry) == 0.0


def test_other_right_answers_are_right() -> None:
    """Even if they are written differently from the library's."""
    countdown = {"answer": "", "metadata": {"numbers": [3, 8, 2], "target": 14}}
    assert judged("countdown", "8 - (-3)*2.", countdown | {"answer": "8 + 3*2"}) == 1.0
    integral = {"answer": "x**2 + C", "metadata": {"integrand": "2*x", "variable": "x"}}
    assert judged("simple_integration", "x*x - cos(x)**2 - sin(x)**2", integral) == 1.0


def test_no_other_task_runs_python() -> None:
    """If a later version of the library adds one, it must be reviewed."""
    runs = re.compile(r"\b(?:eval|exec|sympify|parse_expr)\(")
    found = {
        path.stem
        for path in Path(library().__file__).parent.rglob("*.py")
        if runs.search(path.read_text(encoding="utf-8"))
    }
    assert found == {*LISTS, *CALCULATED, *OWN_CODE, PARSER}


def test_the_library_is_imported_without_warnings_on_screen(tmp_path: Path) -> None:
    """One of its dependencies has such a line, and uv makes no bytecode when it installs."""
    (tmp_path / "cellpylib.py").write_text("if 1 is 'a':\n    pass\n")
    script = "from pubswap_protocol.verifiers.reasoning import library; library()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_versions_of_many_tasks_name_the_library() -> None:
    """Not each task: a digest of them all would not say which version is another."""
    tasks = (f"reasoning_gym:{name}" for name in [*LISTS, *CALCULATED])
    problems = [Problem(id=task, prompt="?", answer="1", verifier=task) for task in tasks]
    named = versions_named([*problems, Problem(id="m", prompt="?", answer="1")], "exact")
    assert re.fullmatch(rf"reasoning_gym@\d+\+{re.escape(version('reasoning-gym'))}", named)
