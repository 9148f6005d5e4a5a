r"""`math`: mathematically equal to the answer, according to math-verify.

Both sides are parsed as the content of a \boxed{...}, because outside of mathematics the library
looks only for numbers, and reads 2 in 2\sqrt{3}.
"""

import logging
import math
import re
from decimal import Decimal
from functools import lru_cache
from typing import Any

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.extract import first_of, last_boxed, opened, tagged
from pubswap_protocol.verifiers.latex import GAP, TEXT, plain_latex

MAX_ANSWER_CHARACTERS = 2000

_TEXT_CONTENT = re.compile(rf"{TEXT}([^{{}}]*)\}}")
# 1, 234 is no 1,234, and 1 2 no 12.
_USELESS_SPACE = re.compile(r" (?![\dA-Za-z])|(?<![\dA-Za-z,]) |(?<=,) (?!\d)|(?<=\d) (?=[A-Za-z])")
_SPACE = re.compile(r"\\[,;: ]|~")
_TIME = re.compile(rf"(\d\d?)(:\d\d)?(?:[\s~}}]|\\[ ,;!]|{TEXT})*([ap])\.?\s?m\b\.?", re.IGNORECASE)
_BASE = re.compile(r"\d_\{?(\d+)\}?$")
_LIST_IN_TEXT = re.compile(rf"{TEXT}([^{{}}]*(?:[\d,]|\band\b|\bor\b)[^{{}}]*)\}}")
_NO_SPACE = re.compile(r"\s*+\\!\s*+")
_TIE = re.compile(r"(?<!\\)~")
_SCIENTIFIC = re.compile(
    r"(?<![\w.,^])(?:(\d{1,9}(?:\.\d{1,15})?)\s*(?:\\(?:times|cdot)|[*x])\s*10\s*\^"
    r"(?:[{(]\s*(-?\d{1,2})\s*[})]|(-?\d{1,2})(?!\d))"
    # 2e-1 may be a difference.
    r"|(\d{1,9}\.\d{1,15}|1(?=e[+-])|\d{1,9}(?=e\d))e\+?(-?\d{1,2})(?![\w^]|\.\d))",
    re.IGNORECASE,
)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:\s|\\[,;: ])\d{3})++(?![\d/])")
_UNIT_IN_LIST = re.compile(
    rf"(?<=\d)(?:\s|\\[,;: ])*+{TEXT}[^{{}}\d,]*\}}(?:\^\{{?\d\}}?)?(?=\s*[,;])"
)
_BEFORE_UNIT = rf"(?:{GAP}|{TEXT})"
_UNIT = re.compile(rf"(?<=\d){_BEFORE_UNIT}++([ckm]?m(?:/[sh])?(?:\}}?\^\{{?[23])?)\}}*[\s.]*$")
_DEGREES = re.compile(
    rf"^([-\d.,\s]++)(?:\^\{{?\\circ\}}?|\u00b0){_BEFORE_UNIT}*+([CF])\}}?[\s.]*$"
)
_CURRENCIES = (r"\\\$|dollar|\bUSD\b", r"\u20ac|euro|\bEUR\b", "\u00a3", "\u00a5", r"\bcents?\b")
_MONEY = re.compile(r"[\u20ac\u00a3\u00a5]|(?<=\d)\s*+(?:dollars?|USD|EUR)\b")
_SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALED = re.compile(
    rf"(?<![\d.,])(\d[\d,]*+(?:\.\d++)?+)({_BEFORE_UNIT}*+)(thousand|million|billion|trillion)\b",
    re.IGNORECASE,
)
# A number and perhaps its name: 19, 19 people, or 10 miles per hour.
_NAMED = re.compile(
    rf"([^A-Za-z]*\d)(?:{GAP}++(?!(?:percent|dozen|hundred|and)\b)"
    r"((?:[A-Za-z]{3,}|mL)(?:[\s-][A-Za-z]{2,})*+))?[\s.$]*"
)
# Words in any case: True, does not exist. BD may be two options, and mgRh a product.
_WORDS = re.compile(
    r"(?!.*\b(?:and|or)\b)(?=.*[aeiou])(?=.*[k-z])(?=.*[a-z]{4})[a-z]++(?: [a-z]++)*+\.?",
    re.IGNORECASE,
)
# ASDiv names what is counted in parentheses: 21 (books).
_COUNTED = re.compile(
    r"\s*+(-?[\d.,:/]++)\s++\(([A-Za-z]++\.?(?:-[A-Za-z]{2,}| [A-Za-z]++)*+)\)[\s.]*+"
)
# 0.5% is not 0.5, but 92.5 for 92.5% only omits what the question says.
_PERCENT = re.compile(rf"^(\s*+[-+]?\s*+[1-9][\d,]*+(?:\.\d++)?+){_BEFORE_UNIT}*+\\?%[\s}}.]*$")
# An accountant's $(9.8) is -9.8; without the dollar sign it may be 9.8.
_LOSS = re.compile(r"^\s*+(\\?\$)\s*+\((\d[\d,]*+(?:\.\d++)?)\)(?=\s*+(?:[a-z.]|$))")
_LEADING = re.compile(r"^\s*+(?:=++|\\approx\b|\u2248)")
_AND = re.compile(r"[\s,]*+\b(?:and|or)\b")
_VARIABLE = re.compile(r"(?<![\\A-Za-z])(?<!\d\s)(?:[a-z]|ab|bc|st)$")
_EDGES = re.compile(r"^(?:\s|\\[,;:! ])++|(?<!\\)(?:\\[,;:! ]|[\s.,;:])++$")
_IMAGINARY = re.compile(r"(?<=[\d}])(?:\s|\\[,;! ]|\\cdot\b)++i(?![A-Za-z])")
# The set of the x for which one relation holds.
_BUILDER = re.compile(
    r"\\\{\s*+[a-z]\s*+\|(?=[^|]*(?:[<>]|\\(?:[gl]t|[gln]eq?)\b))"
    r"((?:[^,;|\\]|\\(?!text|mathrm|in\b|wedge|vee|l?and\b|l?or\b|[{}]))++)\\\}"
)
_EQUATIONS = re.compile(r"[^=()]*=[^=()]*,[^=()]*=")
_DATE = re.compile(r"^\s*+(?=\S*\d{4})(\d{1,4})([/-])(\d\d?)\2(\d{1,4})[\s.]*$")
_TWICE = re.compile(r"^\s*+\[\s*+([^,\[\]]+?)\s*+,\s*+\1\s*+\][\s.]*$")
_MIXED = re.compile(r"(?<![\d./^_])(\d+)\s+(\d+)/(\d+)(?![\d.])")

# The maximum number of characters read of a statement.
_MAX_STATED = 4000

_STATED = re.compile(r"\banswer\*{0,2}(?:\s{1,9}is\b\*{0,2}:?|\s{0,9}:)[\s*]*+", re.IGNORECASE)
_STATED_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_LEAD = re.compile(r"[^\d$\\\n]*+")
_JOINT = re.compile(r"[\s*,;]*+(?:and\b|or\b)?\s*+")
_END = re.compile(r"\.(?=\s)|\n")
_MORE = re.compile(r"[\s*,;/(]*+(?:and\b|or\b)?\s*+[-\d$\\]|.*\bor\b.*\d", re.DOTALL)


def score_math(response: str, problem: Problem) -> float:
    r"""1.0 if math-verify finds the response's answer equal to the problem's.

    The answer is the last \boxed{...}, else the statement in the last <answer>...</answer> or after
    "the answer is", else the response itself if it is one line. Several values are equal only to a
    list of them.

    There is no time limit here, because the library's signal alarms work only in the main thread.
    The pool limits the time.
    """
    answer = first_of(response, last_boxed, _tagged, stated_answer, _only_line)
    if not answer or len(answer) > MAX_ANSWER_CHARACTERS or "\\boxed" in answer:
        return 0.0
    gold, answer = (
        _LOSS.sub(r"-\1\2", plain_latex(opened(side))) for side in (problem.answer, answer)
    )
    named_gold = _named(gold)
    bare_gold, bare_answer = _bare_text(gold), _bare_text(answer)
    if bare_answer in (bare_gold, _bare_text(named_gold)):
        return 1.0
    # The library multiplies the letters of some words, and evaluates others.
    if _WORDS.fullmatch(bare_gold) and _WORDS.fullmatch(bare_answer):
        return float(bare_gold.rstrip(".").casefold() == bare_answer.rstrip(".").casefold())
    if named_gold != gold:
        gold, answer = named_gold, _named(answer)
    marks = ((_BASE, 1), (_TIME, 3), (_UNIT, 1), (_DEGREES, 2))
    if any(_differ(mark, group, gold, answer) for mark, group in marks):
        return 0.0
    gold_currencies, answer_currencies = _currencies(gold), _currencies(answer)
    if gold_currencies and answer_currencies and gold_currencies != answer_currencies:
        return 0.0
    # One side may omit a percent sign, a scale or a name, just like a unit.
    plain, short = (_PERCENT.sub(r"\1", side) for side in (gold, answer))
    if bool(_SCALED.search(gold)) != bool(_SCALED.search(answer)):
        plain, short = (_SCALED.sub(r"\1\2", side) for side in (plain, short))
    named, other = _NAMED.fullmatch(plain), _NAMED.fullmatch(short)
    if named and other and _names_fit(named[2], other[2], problem.prompt):
        plain, short = named[1], other[1]
    return float(
        _equal(gold, answer) or ((plain, short) != (gold, answer) and _equal(plain, short))
    )


def _named(answer: str) -> str:
    """An answer such as 21 (books) as 21 books."""
    counted = _COUNTED.fullmatch(answer)
    if counted is None:
        return answer
    named = f"{counted[1]} {counted[2]}"
    return named if _NAMED.fullmatch(named) else f"{counted[1]}\\text{{ {counted[2]}}}"


def _names_fit(gold: str | None, answer: str | None, prompt: str) -> bool:
    """Whether the names of the counted things agree; one side may omit its name.

    A name that only the answer has must consist of words of the question, singular or plural: 5
    halves are not 5.
    """
    if gold or not answer:
        return gold is not None and answer in (gold, None)
    asked, named = (
        {word.rstrip("s") for word in re.findall("[a-z]+", text.lower())}
        for text in (prompt, answer)
    )
    return named <= {*asked, "ml"}


def _equal(gold: str, answer: str) -> bool:
    from math_verify import verify

    parsed = _parsed(gold)
    decimals = _decimal_places(parsed[0]) if parsed else 6
    return bool(verify(parsed, _parsed(answer), float_rounding=decimals, timeout_seconds=None))


def _scaled(number: re.Match[str]) -> str:
    value = Decimal(number[1].replace(",", "")).scaleb(_SCALES[number[3].lower()])
    return f"{value:f}{number[2]}"


def _decimal_places(gold: Any) -> int:
    """The number of decimals to compare: at least six, and at least four significant digits, so
    that a small gold answer does not equal 0."""
    try:
        size = abs(float(gold))
    except Exception:  # not a number
        return 6
    return max(6, 3 - math.floor(math.log10(size))) if 0 < size < 1 else 6


def _tagged(text: str) -> str | None:
    content = tagged(text)
    return None if content is None else _formulas_of(content)


def _differ(mark: re.Pattern[str], group: int, gold: str, answer: str) -> bool:
    """Whether both sides name a base, half of the day or unit, but different ones.

    The library does not compare these.
    """
    gold_mark, answer_mark = mark.search(gold.strip("$ ")), mark.search(answer.strip("$ "))
    return bool(gold_mark and answer_mark and _bare(gold_mark[group]) != _bare(answer_mark[group]))


def _bare(mark: str) -> str:
    return re.sub("[{}]", "", mark).lower()


def _bare_text(text: str) -> str:
    r"""The text without \text: 12 N is 12 \text{ N}, but with 12 as gold it may be 12 times N."""
    words = _SPACE.sub(" ", _TEXT_CONTENT.sub(r" \1 ", text))
    return _USELESS_SPACE.sub("", " ".join(words.split()))


def _currencies(text: str) -> list[str]:
    return [marks for marks in _CURRENCIES if re.search(marks, text)]


@lru_cache(maxsize=256)  # the responses of a group share their gold
def _parsed(answer: str) -> list[Any]:
    from math_verify import LatexExtractionConfig, parse
    from sympy import Expr

    # It warns at every call that its timeout is off.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    boxed = f"\\boxed{{{_plain(answer)}}}"
    parsed = parse(boxed, [LatexExtractionConfig()], parsing_timeout=None)
    if _EQUATIONS.match(answer):  # of which the library may have read only the last number
        parsed = [value for value in parsed if not isinstance(value, Expr)]
    return [_with_imaginary_unit(value) for value in parsed]


def _with_imaginary_unit(value: Any) -> Any:
    r"""The value with the imaginary unit for i.

    The library reads two different symbols in 3i/5 and \frac{3}{5}i.
    """
    from sympy import And, Basic, Eq, FiniteSet, I, MatrixBase

    if not isinstance(value, Basic | MatrixBase):
        return value
    units = {symbol: I for symbol in value.free_symbols if symbol.name == "i"}
    try:
        if units and isinstance(value, FiniteSet | And):  # the library needs their order
            parts = getattr(value, "_unsorted_args", value.args)
            parts = [_with_imaginary_unit(part) for part in parts]
            return parts[0] if len(set(parts)) == 1 else value.func(*parts)
        if units and isinstance(value, Eq):  # not evaluated: the z of z = 2i is a real symbol
            left, right = value.args
            left = left if left.is_Symbol else _with_imaginary_unit(left)
            return Eq(left, _with_imaginary_unit(right), evaluate=False)
        return value.subs(units) if units else value
    except (AttributeError, TypeError, ValueError):  # such as i < 5, where i is a variable
        return value


def _plain(answer: str) -> str:
    """Rewrite an answer in forms that the library parses.

    The library drops words at the end as units, even "or 41", and variables such as the t of 4t.
    """
    answer = _LEADING.sub("", _TIE.sub(" ", _BUILDER.sub(r"\1", answer)))
    # A date is not a quotient or difference, and [1, 1] is a list, not the interval {1}.
    answer = _TWICE.sub(r"(\1, \1)", _DATE.sub(r"(\1, \3, \4)", answer))
    answer = _DEGREES.sub(r"\1", answer).replace("\u00b0", r"^\circ ")
    # 6 m^2 may be a polynomial.
    answer = _UNIT.sub(lambda unit: unit[0] if unit[1].startswith("m^") else "", answer)
    answer = _MONEY.sub("", answer)
    answer = _SCIENTIFIC.sub(_decimal, _SCALED.sub(_scaled, answer))
    answer = _THOUSANDS.sub(lambda number: re.sub(r"\D", "", number[0]), answer)
    answer = _UNIT_IN_LIST.sub("", answer)
    answer = _IMAGINARY.sub("i", answer)
    answer = _TIME.sub(lambda time: time[1] + (time[2] or "").replace(":00", ""), answer)
    answer = _AND.sub(", ", _LIST_IN_TEXT.sub(r" \1 ", _NO_SPACE.sub("", answer)))
    answer = _EDGES.sub("", _MIXED.sub(r"\1\\frac{\2}{\3}", answer))
    return _VARIABLE.sub(r"\g<0>\\,", answer)


def _decimal(number: re.Match[str]) -> str:
    """Convert scientific notation to a decimal number, which is exact: 8.7 times 10^8 is not."""
    mantissa, exponent = filter(None, number.groups())
    return f"{Decimal(mantissa).scaleb(int(exponent)):f}"


def stated_answer(text: str) -> str | None:
    """The answer after the last "answer is" or "answer:"; None if the text has neither."""
    anchors = list(_STATED.finditer(text))
    return _formulas_of(text[anchors[-1].end() :]) if anchors else None


def _formulas_of(text: str) -> str:
    """The formula that a text begins with, or several as a list; else its first sentence."""
    text = text[:_MAX_STATED].strip()
    formulas: list[str] = []
    lead = _LEAD.match(text)
    end = at = lead.end() if lead else 0
    while formula := _STATED_FORMULA.match(text, at):
        formulas.append(next(filter(None, formula.groups())))
        end = formula.end()
        joint = _JOINT.match(text, end)
        at = joint.end() if joint else end
    # "$41$ or 42 apples" is not an answer, although its formulas alone would be one.
    if formulas and not _MORE.match(_END.split(text[end:], 1)[0]):
        return ", ".join(formulas)
    return _END.split(text, 1)[0].strip(" *").rstrip(" .*")


def _only_line(text: str) -> str | None:
    """The text if it is one line."""
    return None if "\n" in text.strip() else text
