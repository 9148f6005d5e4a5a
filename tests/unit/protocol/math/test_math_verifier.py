"""`math` against verdicts by hand, and against verl's configuration of math-verify.

math_answers.jsonl has answers of every kind in MATH: right ones and wrong ones.
math_responses.jsonl has whole responses: hedges, thoughts, answers without a box. "verl" gives the
reason where a verdict differs from verl's on purpose.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers import score

CLOSINGS = (
    r"Thus, the answer is: \[ \boxed{@} \]",
    r"So the value we look for is $\boxed{@}$.",
    "**Answer:** $@$",
    "The final answer is $@$",
    "<answer>@</answer>",
)


def rows(name: str) -> list[dict[str, Any]]:
    """The lines of a data file in this folder."""
    lines = (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


ANSWERS, RESPONSES = rows("math_answers.jsonl"), rows("math_responses.jsonl")


def verdict(gold: str, response: str, prompt: str = "?") -> float:
    """Our verdict."""
    return score("math", response, Problem(id="1", prompt=prompt, answer=gold))


@cache
def parsed(gold: str) -> list[Any]:
    """A reference answer, parsed by the library as in verl."""
    return list(parse(f"\\boxed{{{gold}}}", (LatexExtractionConfig(),)))


def reference(gold: str, response: str) -> float:
    """verl's verdict, with the library configured as in reward_score/math_verify.py."""
    found = parse(response, (ExprExtractionConfig(), LatexExtractionConfig()))
    return float(verify(parsed(gold), found))


def cases(row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Each answer of a row with the expected verdict."""
    for name, right in (("right", 1.0), ("wrong", 0.0)):
        yield from ((answer, right) for answer in row.get(name, []))


def test_the_table_is_large_enough() -> None:
    """Every kind of answer has right and wrong ones."""
    assert sum(1 for row in ANSWERS for _ in cases(row)) >= 300
    assert all(row["right"] and row["wrong"] for row in ANSWERS)


@pytest.mark.parametrize("row", ANSWERS, ids=lambda row: f"{row['kind']}: {row['gold']}")
def test_answers_in_five_closings(row: dict[str, Any]) -> None:
    """A right answer is right in each closing; wrong ones, such as fragments of it, are wrong in
    each.
    """
    for answer, right in cases(row):
        for closing in CLOSINGS:
            response = closing.replace("@", answer)
            assert verdict(row["gold"], response, row.get("prompt", "?")) == right, response


@pytest.mark.parametrize("row", RESPONSES, ids=lambda row: f"{row['gold']}: {row['response']}")
def test_whole_responses(row: dict[str, Any]) -> None:
    """A response is parsed once, without its thoughts; naming several values gains nothing."""
    assert verdict(row["gold"], row["response"], row.get("prompt", "?")) == float(row["right"])


@pytest.mark.full
def test_answers_are_judged_as_verl_judges_them() -> None:
    """Except where the table gives a reason; verl only reads mathematics between dollar signs."""
    for row in ANSWERS:
        for answer, right in cases(row):
            responses = [
                closing.replace("@", f"${answer}$" if "<answer>" in closing else answer)
                for closing in CLOSINGS
            ]
            differs = any(reference(row["gold"], response) != right for response in responses)
            assert differs == (answer in row.get("verl", {})), (row["gold"], answer)


def test_responses_are_judged_as_verl_judges_them() -> None:
    """Except where the table gives a reason."""
    for row in RESPONSES:
        differs = reference(row["gold"], row["response"]) != float(row["right"])
        assert differs == ("verl" in row), row
