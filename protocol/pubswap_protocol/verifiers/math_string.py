r"""`math-string`: the same text as the answer, up to the ways in which MATH writes one value.

The rule of verl's score for MATH (verl/utils/reward_score/math_reward.py, which has it from
lm-evaluation-harness and the authors of MATH), step by step, so that figures can be held against
theirs. It reads no mathematics: 0.75 is wrong for \frac{3}{4}, and \text{ cm} is removed as a unit.
"""

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.extract import first_of
from pubswap_protocol.verifiers.verifier import VERIFIERS, Mathematical

_REPLACED = (
    ("\n", ""),
    (r"\!", ""),
    (r"\\", "\\"),
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    (r"\left", ""),
    (r"\right", ""),
    (r"^{\circ}", ""),
    (r"^\circ", ""),
    (r"\$", ""),
)


@VERIFIERS.register
class MathString(Mathematical):
    r"""Correct if the content of the last \boxed{...} equals the answer as normalised text."""

    name = "math-string"

    def score(self, response: str, problem: Problem) -> float:
        text = first_of(response, lambda whole: whole)
        answer = None if text is None else _last_box(text)
        return float(answer is not None and _equal(answer, problem.answer))


def _last_box(text: str) -> str | None:
    r"""The content of the last \boxed{...}; None if it is not closed. \boxed 5 goes before it."""
    if r"\boxed " in text:
        return text.rpartition(r"\boxed ")[2].partition("$")[0]
    _, mark, rest = text.rpartition(r"\boxed")
    if not mark or not rest.startswith("{"):
        return None
    depth = 0
    for offset, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[1:offset]
    return None


def _equal(answer: str, gold: str) -> bool:
    try:
        return _normal(answer) == _normal(gold)
    except ValueError:
        return answer == gold


def _normal(text: str) -> str:
    """The text in one of its forms; raises ValueError for several units or a cut command."""
    for old, new in _REPLACED:
        text = text.replace(old, new)
    text, *units = text.split(r"\text{ ")
    if len(units) > 1:
        raise ValueError("several units")
    text = text.replace(r"\%", "").replace(" .", " 0.").replace("{.", "{0.")
    text = f"0{text}" if text.startswith(".") else text
    sides = text.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2:  # x = 5
        text = sides[1]
    text = _fractions(_roots(text).replace(" ", ""))
    return _quotient(r"\frac{1}{2}" if text == "0.5" else text)


def _roots(text: str) -> str:
    r"""\sqrt3 as \sqrt{3}."""
    first, *parts = text.split(r"\sqrt")
    if "" in parts:
        raise ValueError("a root of nothing")
    return first + "".join(
        rf"\sqrt{part}" if part[0] == "{" else rf"\sqrt{{{part[0]}}}{part[1:]}" for part in parts
    )


def _fractions(text: str) -> str:
    r"""\frac12 and \frac1{2} as \frac{1}{2}; a text in which a fraction ends early as it is."""
    first, *parts = text.split(r"\frac")
    for number, part in enumerate(parts):
        if not part:
            raise ValueError("a fraction of nothing")
        if part[0] == "{":
            continue
        if len(part) < 2:
            return text
        below = part[1:] if part[1] == "{" else f"{{{part[1]}}}{part[2:]}"
        parts[number] = f"{{{part[0]}}}{below}"
    return r"\frac".join([first, *parts])


def _quotient(text: str) -> str:
    r"""1/2 as \frac{1}{2}."""
    sides = text.split("/")
    try:
        above, below = map(int, sides)
    except ValueError:  # not two, or not integers
        return text
    return rf"\frac{{{above}}}{{{below}}}" if text == f"{above}/{below}" else text
