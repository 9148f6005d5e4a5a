"""A verdict is the same at every member and at the coordinator."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers import VerifierPool

ROWS = Path(__file__).parents[1] / "math" / "math_answers.jsonl"

JUDGE = """
import json, locale, sys
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers import score
locale.setlocale(locale.LC_ALL, "")
for line in sys.stdin.buffer:
    verifier, gold, answer = json.loads(line)
    problem = Problem(id="1", prompt="Which?", answer=gold)
    print(json.dumps([gold, answer, verifier, score(verifier, answer, problem)]))
"""


def cases() -> list[tuple[str, str, str]]:
    rows = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    boxed = [
        (row["gold"], f"\\boxed{{{answer}}}")
        for row in rows
        for answer in (row["right"] + row["wrong"])[::4]
    ]
    return [(name, gold, text) for name in ("math", "exact", "choice") for gold, text in boxed]


def judged(lines: list[tuple[str, str, str]], **environment: str) -> set[str]:
    """The verdicts of a process with other variables of the environment."""
    done = subprocess.run(
        [sys.executable, "-c", JUDGE],
        input="".join(json.dumps(line) + "\n" for line in lines).encode(),
        stdout=subprocess.PIPE,
        env=os.environ | environment,
        check=True,
    )
    return set(done.stdout.decode().splitlines())


def test_the_locale_the_seed_of_hashes_and_the_order_change_no_verdict() -> None:
    """Nothing that differs between two machines is part of a rule."""
    lines = cases()
    first = judged(lines, LC_ALL="C", PYTHONUTF8="0", PYTHONHASHSEED="1")
    random.Random(0).shuffle(lines)
    assert len(first) > 300
    assert judged(lines, LC_ALL="C.UTF-8", PYTHONHASHSEED="2") == first


@pytest.mark.parametrize("name", ["math", "math-string"])
def test_the_number_of_workers_changes_no_verdict(name: str) -> None:
    """Each worker has read other answers before."""
    rows = [
        (text, Problem(id=str(n), prompt="Which?", answer=gold))
        for n, (verifier, gold, text) in enumerate(cases())
        if verifier == "math"
    ][:120]
    with VerifierPool(1) as one, VerifierPool(2) as two:
        assert one.score_many(name, rows) == two.score_many(name, rows[::-1])[::-1]
