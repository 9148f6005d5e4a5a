"""`math`: equal to the answer as mathematics, by math-verify."""

import logging
from typing import Any

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.extract import extract_answer


def score_math(response: str, problem: Problem) -> float:
    """1.0 if math-verify finds the response's answer equal to the problem's.

    It has no time limit of its own here: its signal alarms work in a main thread only. The pool
    limits it.
    """
    from math_verify import verify

    # It warns at every call that we have taken its alarm away.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    gold = _parse(problem.answer) or _parse(f"${problem.answer}$")
    for text in (response, extract_answer(response)):
        for found in (_parse(text), _parse(f"${text}$")):
            if gold and found and verify(gold, found, timeout_seconds=None):
                return 1.0
            if found:
                break
    return 0.0


def _parse(text: str) -> list[Any]:
    from math_verify import parse

    return list(parse(text, parsing_timeout=None))
