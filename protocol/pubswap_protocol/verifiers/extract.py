r"""Extract the answer from a response.

Each verifier takes the first kind of answer that is present, in its own order, and the last answer
of that kind. Other text neither helps nor harms, so naming two answers gains nothing. Reasoning
does not count: text before the last </think> is ignored, and all text if a <think> is left open.
"""

import itertools
import re
from collections.abc import Callable

Reader = Callable[[str], str | None]

# These patterns run without a time limit, so all their repetitions are bounded or possessive.
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
# An answer may be below its heading, in a formula or a block of code.
_LINE = re.compile(
    r"answer[*_]{0,2}(?:\s{0,9}is)?\s{0,9}:(?:[*_]{1,2}(?=\s))?"
    r"(?:\s|\*\*|(?:\$\$|\\\[|```\w{0,20})[ \t]{0,9}\n)*+([^\n]*)",
    re.IGNORECASE,
)
_WORDS = re.compile(r"(?:(?!answer)[a-z]{2,12}\s{1,9}){0,4}", re.IGNORECASE)
_BRACE = re.compile(r"\\[\\{}]|\\(?:boxed|fbox|framebox)\s{0,9}\{|[{}]")
_UNBRACED = re.compile(
    r"\\boxed(?:\s{0,9}(?=\d)|\s{1,9})(\d{1,30}(?:\.\d{1,30})?|[A-Za-z](?![A-Za-z]))"
)
_AND = re.compile(r"(?:[\s$,;]|\\[\\()\[\]]|\\q?quad|\\text\{\s?(?:and|or)\s?\}|and|or|\w\s?=)*+")

# The maximum number of characters read of a statement.
_MAX_STATED = 4000
_STATED = re.compile(
    r"\banswer\*{0,2}(?:\s{1,9}is\b\*{0,2}:?|\s{0,9}:|\*{0,2}[ \t]{0,9}\n)[\s*]*+|^####(?!#)\s*+",
    re.IGNORECASE | re.MULTILINE,
)
_FORMULA_AT = re.compile(
    r"\$\$([^$]++)\$\$|\$((?:[^$\\]|\\.)++)\$|\\\[((?:[^\\]|\\[^\]])++)\\\]|\\\(((?:[^\\]|\\[^)])++)\\\)"
)
_DELIMITER = re.compile(r"(?<!\\)\$|(?<!\\)\\[()\[\]]")
_END = re.compile(r"\.(?=\s|$)|\n")
# What follows explains the answer, and does not change it.
_REASON = re.compile(
    r"[,;]?\s(?:since|because)\b|,\s(?:which|all in all|so|as there|as it|as we)\b",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    r"^(?:(?:therefore|thus|then|hence|simply|just|clearly|exactly|approximately|about|roughly"
    r"|equal to|given by)\b[\s,:]*)+",
    re.IGNORECASE,
)

_FORMULA = re.compile(
    r"\s*+(?:\$\$?([^$]++)\$\$?|\\[(\[]((?:[^\\]|\\[^()\[\]])++)\\[)\]])\s*+\.?\s*+"
    r"|\s*+`([^`]++)`\s*+"
)


def extract_answer(response: str) -> str:
    r"""The last <answer>...</answer>, else the rest of the last line with "Answer:", else the last
    \boxed{...}, else the last line that is not empty; "" if there is none. A box, a formula or code
    is opened.
    """
    return opened(first_of(response, tagged, answer_line, last_boxed, last_line) or "")


def opened(answer: str) -> str:
    """The content of the answer's last box, and of the formula or code that is all of it."""
    answer = last_boxed(answer) or answer
    formula = _FORMULA.fullmatch(answer)
    return next(filter(None, formula.groups())).strip() if formula else answer


def first_of(response: str, *readers: Reader) -> str | None:
    """The answer found by the first reader that finds one in the response; None if none does."""
    text = response.rpartition("</think>")[2]
    if "<think>" in text:
        return None
    answers = (reader(text) for reader in readers)
    return next((answer.strip() for answer in answers if answer is not None), None)


def tagged(text: str) -> str | None:
    """The content of the last <answer>...</answer>."""
    tags = list(_TAG.finditer(text))
    pairs = [(start, end) for start, end in itertools.pairwise(tags) if end[1] and not start[1]]
    return text[pairs[-1][0].end() : pairs[-1][1].start()] if pairs else None


def answer_line(text: str) -> str | None:
    """The rest of the last line with "Answer:", or the next line below such a heading, which may
    begin with "Answer:" too, without the asterisks of bold print around it.
    """
    lines = list(filter(None, _LINE.findall(text)))
    if not lines:
        return None
    again = _LINE.match(_WORDS.sub("", lines[-1], count=1))
    return str(again[1] if again else lines[-1]).strip().removesuffix("**")


def last_boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...}; boxes separated by at most "and" form a list.

    None if there is no box, or the last is not closed.
    """
    text = _UNBRACED.sub(r"\\boxed{\1}", text)
    opened: list[re.Match[str]] = []
    boxes: list[tuple[int, int, int]] = []  # offsets of box, content, and content's end
    for brace in _BRACE.finditer(text):
        if brace[0] == "}" and opened:
            opening = opened.pop()
            if opening[0] != "{":
                boxes.append((opening.start(), opening.end(), brace.start()))
        elif brace[0].endswith("{") and brace[0] != r"\{":
            opened.append(brace)
    boxes.sort()
    if not boxes or any(brace[0] != "{" and brace.start() > boxes[-1][0] for brace in opened):
        return None
    contents: list[str] = []
    next_start = len(text)
    while boxes and (not contents or _AND.fullmatch(text, boxes[-1][2] + 1, next_start)):
        next_start, start, end = boxes.pop()
        contents.append(text[start:end])
    return ", ".join(dict.fromkeys(reversed(contents)))


def stated(text: str) -> str | None:
    """The answer after the last "answer is", "answer:" or heading; None if the text has none."""
    anchors = list(_STATED.finditer(text))
    return statement(text[anchors[-1].end() :]) if anchors else None


def statement(text: str) -> str:
    """The formula or sentence that a text begins with, without its reasons and its borders."""
    text = text[:_MAX_STATED].strip()
    formula = _FORMULA_AT.match(text)
    if formula:  # which may have several lines
        content = next(filter(None, formula.groups()))
        text = " ".join(content.split()) + " " + text[formula.end() :]
    text = _REASON.split(_DELIMITER.sub(" ", _END.split(text, 1)[0]), 1)[0]
    return _HARMLESS.sub("", text.strip(" *")).strip(" *").rstrip(" .*:")


def last_line(text: str) -> str | None:
    """The last line that is not empty."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), None)
