"""`number`: a quantity within a tolerance, such as an amount of money."""

import re
from decimal import Context, Decimal
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from pubswap_protocol.bounds import Factor, Share
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.declared.text import bare
from pubswap_protocol.verifiers.extract import extract_answer, opened
from pubswap_protocol.verifiers.verifier import VERIFIERS, Verifier

# Sums of numbers of so many characters, and exponents of two digits, are exact with so many digits.
MAX_NUMERAL = 400
_EXACT = Context(prec=3000)

# Full-width signs, the minus sign, and the spaces and apostrophes between thousands.
_PLAIN = str.maketrans(
    "\uff10\uff11\uff12\uff13\uff14\uff15\uff16\uff17\uff18\uff19"
    "\uff0b\uff0d\u2212\uff0e\uff0c\uff05\u00a0\u2007\u2009\u202f\u2019",
    "0123456789+--.,%    '",
)
_LATEX = re.compile(r"\{(,)\}|\\([%$ ])|\\([,;:!])")


def _grammar(mark: str, thousands: str) -> re.Pattern[str]:
    """A number such as 1234.5, -1,234.5, .5 or 1.2e-3 if the mark is a point."""
    whole = rf"\d{{1,3}}(?P<space>[{thousands} '])\d{{3}}(?:(?P=space)\d{{3}})*+|\d++"
    digits = rf"(?:(?:{whole})(?:{mark}\d++)?|{mark}\d++)"
    return re.compile(rf"[+-]?{digits}(?:[eE][+-]?\d{{1,2}})?", re.ASCII)


_GRAMMARS = {".": _grammar(r"\.", ","), ",": _grammar(",", r"\.")}


def _named(unit: str) -> str:
    if not unit.strip() or unit != unit.strip() or re.match(r"[\d.,+\-' ]", unit):
        raise ValueError(f"{unit!r} is no unit: it begins like a number, or with white space")
    return unit


Unit = Annotated[str, Field(min_length=1, max_length=40, strict=True), AfterValidator(_named)]


def within(value: Decimal, gold: Decimal, tolerance: float, relative: float = 0.0) -> bool:
    """Whether |value - gold| is at most `tolerance` or `relative` |gold|, without rounding."""
    share = _EXACT.multiply(Decimal(repr(relative)), abs(gold))
    most = max(Decimal(repr(tolerance)), share)
    return _EXACT.subtract(gold, most) <= value <= _EXACT.add(gold, most)


@VERIFIERS.register
class NumberWithin(Verifier):
    """Correct if the answer is one number, within a tolerance of the problem's."""

    name = "number"
    quick = True
    by_problem = frozenset({"tolerance", "relative_tolerance", "units", "decimal"})

    tolerance: Factor = Field(default=0.0, description="Largest difference that is right.")
    relative_tolerance: Share = Field(
        default=0.0, description="The same as a share of the right number. The larger one counts."
    )
    units: Annotated[tuple[Unit, ...], Field(max_length=50, fail_fast=True)] = Field(
        default=(),
        description="Units that may stand before or behind the number, such as 'EUR'. They convert "
        "nothing. 12% is 0.12 unless '%' is one of them.",
    )
    decimal: Literal[".", ","] = Field(
        default=".", description="Decimal mark. The other one, spaces and ' may part thousands."
    )

    def score(self, response: str, problem: Problem) -> float:
        gold = self._gold(problem)
        value = None if gold is None else self._number(extract_answer(response))
        if gold is None or value is None:
            return 0.0
        return float(within(value, gold, self.tolerance, self.relative_tolerance))

    def fault(self, problem: Problem) -> str | None:
        if self._gold(problem) is None:
            units = f", perhaps with {' or '.join(self.units)}" if self.units else ""
            return (
                f"the answer {problem.answer[:40]!r} is not a number with the decimal mark "
                f"{self.decimal!r}{units}"
            )
        if not self.score(self.right_response(problem), problem):
            return "the answer cannot be told from a response's layout; write the number alone"
        return None

    def _gold(self, problem: Problem) -> Decimal | None:
        answer = problem.answer
        return self._number(opened(answer)) if len(answer) <= MAX_NUMERAL else None

    def _number(self, answer: str) -> Decimal | None:
        """The only number of an answer, without its unit."""
        if len(answer) > MAX_NUMERAL:
            return None
        text = bare(_LATEX.sub(_unescaped, answer).translate(_PLAIN))
        sign = text[:1] if text[:1] in ("+", "-") else ""
        for number, divisor in self._readings(text.removeprefix(sign).lstrip()):
            if _GRAMMARS[self.decimal].fullmatch(sign + number):
                marks = {ord(mark): "" for mark in ".,' "} | {ord(self.decimal): "."}
                return _EXACT.divide(Decimal((sign + number).translate(marks)), divisor)
        return None

    def _readings(self, text: str) -> list[tuple[str, int]]:
        """What may be the number, without a unit, and what it is divided by."""
        readings = [(text, 1)]
        # The full stop of "Rs." may have gone as that of a sentence.
        plain = [unit.translate(_PLAIN) for unit in self.units]
        for unit in dict.fromkeys([*plain, *filter(None, map(bare, plain))]):
            if text.endswith(unit):
                readings.append((text.removesuffix(unit).rstrip(), 1))
            if text.startswith(unit):
                readings.append((text.removeprefix(unit).lstrip(), 1))
        if text.endswith("%") and "%" not in self.units:
            readings.append((text.removesuffix("%").rstrip(), 100))
        return readings


def _unescaped(found: re.Match[str]) -> str:
    r"""A sign of LaTeX as text: {,} and \% as themselves, \, and the like as a space."""
    return found[1] or found[2] or " "
