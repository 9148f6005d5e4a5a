r"""A right and a wrong response to a problem, written independently of its verifier's parser.

A verifier that misreads \frac{23}{2} still accepts \frac{23}{2}, because it misreads both sides
alike. But it refuses 11.5, or it accepts 23.
"""

import re
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

from pubswap_protocol.verifiers.extract import last_boxed, opened

MATHEMATICAL = ("math", "math-verify", "math-string")
_SPACES = re.compile(r"\s*\\!\s*|(?<!\\)\\[,;: ]|\\left|\\right|\\?\$")
_INTEGER = re.compile(r"-?\d+")
_THOUSANDS = re.compile(r"-?\d{1,3}(?:(?:,|\{,\})\d{3})+(?:\.\d+)?(?:\s[A-Za-z\s]+)?")
_FRACTION = re.compile(r"(-?)(\d*)\s*\\[dt]?frac(?:\{(\d+)\}\{(\d+)\}|(\d)(\d))")
_SCIENTIFIC = re.compile(r"(-?(?:\d+\.\d+|1)|-?\d+(?=e\d))e\+?(-?\d+)", re.IGNORECASE)
_COUNTED = re.compile(r"(-?[\d.,:/]+)\s+\([A-Za-z][^()\d]*\)")
_ROOT = re.compile(r"(-?)(\d*)\s*\\sqrt(?:\{(\d+)\}|(\d))")
_LOSS = re.compile(r"\\?\$\s*\((\d[\d,.]*)\)([ a-z]*)")
_SUM = re.compile(
    r"(?!\d+-\d+-\d{4}$|\d{4}-)(?:[\w\s+\-^{}()./]|\\[dt]?frac(?=[\d{])|\\sqrt|\\pi)+"
)
_LIST_IN_WORDS = re.compile(r"\b(?:and|or)\b")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)")
_AROUND = re.compile(  # what may surround a number that is the whole answer
    r"(?:\s[A-Za-z]{2,})+\.?\s*$|\s\([A-Za-z][^()\d]*\)\s*$"
    r"|\\(?:text\w*|mbox|mathrm)(?:\s?\{[^{}\d]*\}(?:\^\{?\d\}?)?)?|\\?%|\^\{?\\circ\}?|_\{?\d+\}?|\\\$"
    r"|^\s*\$?\s*[a-zA-Z]+(?:\([^()]*\))?\s*=|(?<=\d)(?:th|st|nd|rd)\b"
    r"|\\[,;! {}]|[\s(){}\[\]$\u20ac\u00a3\u00a5.]"
)


def right_response(verifier: str, answer: str) -> str:
    """A right response: the answer, reworded where that is easy, in a usual closing."""
    if verifier in MATHEMATICAL:
        boxed = last_boxed(answer) or answer
        boxed = boxed if verifier == "math-string" else rewritten(boxed)
        return f"Thus, the answer is:\n\\[ \\boxed{{{boxed}}} \\]"
    if verifier == "choice":
        return f"The answer is a hard one to see.\n**Answer: ({_letter(answer)})**"
    spaced = "  ".join(answer.split(" ")) if verifier == "exact" else answer
    return f"The answer: see below.\n<answer>{spaced}</answer>"


def wrong_response(verifier: str, answer: str) -> str | None:
    """A wrong response that is close; None for reasoning-gym's tasks, which score in own ways."""
    if verifier in MATHEMATICAL:
        return f"Thus, the answer is:\n\\[ \\boxed{{{mutated(last_boxed(answer) or answer)}}} \\]"
    if verifier == "choice":
        return f"Answer: {'B' if _letter(answer) == 'A' else 'A'}"
    return f"Answer: {opened(answer)}." if verifier == "exact" else None


def rewritten(answer: str) -> str:
    """A mathematical answer of equal value in another form, or only with other spaces."""
    if loss := _LOSS.fullmatch(answer):
        return f"-{loss[1]}{loss[2]}"
    plain = " ".join(_SPACES.sub("", answer).split()).rstrip(".")
    if counted := _COUNTED.fullmatch(plain):
        return counted[1]
    if _THOUSANDS.fullmatch(plain):
        return re.sub("[{},]", "", plain)
    if _INTEGER.fullmatch(plain):
        return f"\\frac{{{2 * int(plain)}}}{{2}}"
    if number := _SCIENTIFIC.fullmatch(plain):
        return f"{number[1]} \\cdot 10^{{{number[2]}}}"
    if fraction := _FRACTION.fullmatch(plain):
        sign, whole, *parts = fraction.groups()
        top, bottom = (int(part) for part in parts if part)
        return sign + _quotient(Fraction(int(whole or 0) * bottom + top, bottom))
    if root := _ROOT.fullmatch(plain):
        sign, factor, *radicands = root.groups()
        radicand = next(int(part) for part in radicands if part)
        return f"{sign}\\sqrt{{{int(factor or 1) ** 2 * radicand}}}"
    if _LIST_IN_WORDS.search(plain):
        return plain
    mark = ";" if ";" in plain else ","
    items = _split(plain, mark)
    if len(items) > 1:
        return f"{mark} ".join(item.strip(",; ") for item in reversed(items))
    if _SUM.fullmatch(plain):
        terms = [term.strip() for term in _split(plain, "+-")]
        return "".join(f" {t if t[0] in '+-' else '+' + t}" for t in reversed(terms)).lstrip(" +")
    return plain


def mutated(answer: str) -> str:
    """The first number of a mathematical answer that contains more; else another number."""
    number = _NUMBER.search(answer)
    if number is None:
        return "7"
    if ":" in answer or _AROUND.sub("", answer) == _AROUND.sub("", number[0]):
        return f"{answer[: number.start()]}{Decimal(number[0]) + 1}{answer[number.end() :]}"
    return number[0]


def _letter(answer: str) -> str:
    return answer.strip().strip("().").upper()


def _quotient(value: Fraction) -> str:
    exact = (value * 10**4).denominator == 1
    return f"{float(value):g}" if exact else f"{value.numerator}/{value.denominator}"


def _split(text: str, marks: str) -> list[str]:
    """Split a text before each mark that is outside all brackets and follows an operand."""
    cuts, depth, last = [0], 0, ""
    for index, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and character in marks and (last.isalnum() or last in ")]}") and last:
            cuts.append(index)
        last = character if character != " " else last
    return [text[start:end] for start, end in pairwise([*cuts, len(text)])]
