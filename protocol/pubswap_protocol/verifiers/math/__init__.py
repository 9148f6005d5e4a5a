"""`math`: the response's answer is the reference's value, in its form.

Both sides are parsed by one grammar, which reads all of a text or nothing. What it cannot read is
equal only as a text.
"""

import re
from functools import lru_cache

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.extract import (
    first_of,
    last_boxed,
    opened,
    stated,
    statement,
    tagged,
)
from pubswap_protocol.verifiers.math.comparison import Comparison
from pubswap_protocol.verifiers.math.grammar import Node, parsed
from pubswap_protocol.verifiers.math.question import Question
from pubswap_protocol.verifiers.math.tokens import Token, Unreadable, tokens
from pubswap_protocol.verifiers.verifier import VERIFIERS, Mathematical

MAX_ANSWER_CHARACTERS = 2000

_LEAD = re.compile(r"^(?:(?:the )?(?:final )?answer (?:is )?)?(?:(?:=|\\approx|:) )*")
_LOSS = re.compile(r"\\?\$\s*\((\d[\d,]*(?:\.\d+)?)\)")


@VERIFIERS.register
class Math(Mathematical):
    r"""Correct if the answer is the reference's value, in its form.

    The answer is the last \boxed{...}, else the statement in the last <answer>...</answer> or after
    "the answer is", else the response itself if it is one line. Several values are equal only to a
    list of them.
    """

    name = "math"
    library = "mpmath"

    def score(self, response: str, problem: Problem) -> float:
        answer = first_of(response, last_boxed, _tagged, stated, _only_line)
        if not answer or len(answer) > MAX_ANSWER_CHARACTERS or "\\boxed" in answer:
            return 0.0
        try:
            gold_tokens, answer_tokens = _read(problem.answer), _read(answer)
        except Unreadable:
            return float(answer.split() == problem.answer.split())
        if not answer_tokens or _texts(gold_tokens) == _texts(answer_tokens):
            return float(bool(answer_tokens))
        try:
            comparison = Comparison(_question(problem.question))
            return float(comparison.equal(_tree(gold_tokens), _tree(answer_tokens)))
        except (Unreadable, RecursionError, ArithmeticError, ValueError):
            return 0.0


def _tagged(text: str) -> str | None:
    content = tagged(text)
    return None if content is None else statement(content)


def _only_line(text: str) -> str | None:
    """The text if it is one line."""
    return None if "\n" in text.strip() else text


@lru_cache(maxsize=256)  # the responses of a group share their gold
def _read(answer: str) -> tuple[Token, ...]:
    """The answer's tokens, without an introduction and borders."""
    text = _LOSS.sub(r"\\$-\1", opened(answer))
    found = [token for token in tokens(text) if token.text != "$"]
    lead = _LEAD.match("".join(f"{text} " for text in _texts(tuple(found))))
    found = found[len(lead[0].split()) :] if lead else found
    while found and found[-1].text in (".", ",", ";"):
        found.pop()
    return tuple(found)


def _texts(found: tuple[Token, ...]) -> list[str]:
    return [token.text for token in found]


@lru_cache(maxsize=256)
def _tree(found: tuple[Token, ...]) -> Node:
    return parsed(found)


@lru_cache(maxsize=64)
def _question(prompt: str) -> Question:
    return Question(prompt)
