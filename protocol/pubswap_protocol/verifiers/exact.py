"""`exact`: the same text as the answer."""

import unicodedata

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.extract import extract_answer, opened
from pubswap_protocol.verifiers.verifier import VERIFIERS, Verifier


@VERIFIERS.register
class Exact(Verifier):
    """Correct if the answer is the problem's, up to white space and Unicode form.

    Nothing equals an empty answer, or an empty response would be right.
    """

    name = "exact"
    quick = True

    def score(self, response: str, problem: Problem) -> float:
        gold = _normal(opened(problem.answer))
        return float(bool(gold) and _normal(extract_answer(response)) == gold)


def _normal(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).split())
