"""`exact`: the same text as the answer."""

import unicodedata

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.extract import extract_answer, opened


def score_exact(response: str, problem: Problem) -> float:
    """1.0 if the extracted answer equals the problem's, up to white space and Unicode form.

    Nothing equals an empty answer, or an empty response would be right.
    """
    gold = _normal(opened(problem.answer))
    return float(bool(gold) and _normal(extract_answer(response)) == gold)


def _normal(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).split())
