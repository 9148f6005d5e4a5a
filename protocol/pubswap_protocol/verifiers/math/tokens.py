"""An answer's text as tokens: LaTeX, Unicode's signs and a calculator's notation give the same."""

import re
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

from pubswap_protocol.verifiers.math.units import UNITS, words

MAX_TOKENS = 600


class Unreadable(Exception):
    """The text is no formula that is known as a whole."""


class Token(NamedTuple):
    """A number, a symbol, a word of text, or a mark such as + or a command."""

    kind: str
    text: str


FUNCTIONS = words("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp")
GREEK = words(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho "
    "varsigma sigma tau upsilon phi chi psi omega"
)

_IGNORED = words(
    "left right displaystyle textstyle large Large huge limits rm bf it checkmark big Big "
    "underline fbox mathcal"
)
_TEXTS = {"text", "textbf", "textit", "textrm", "mbox", "mathrm", "operatorname", "textnormal"}
_ACCENTS = {
    **dict.fromkeys(("mathbf", "boldsymbol", "bm", "vec", "overrightarrow"), "vec"),
    **{"hat": "hat", "widehat": "hat", "bar": "bar", "overline": "bar", "dot": "dot"},
    "mathbb": "mathbb",
}
_SAME = {
    name: same
    for same, names in (
        (r"\frac", "dfrac tfrac cfrac"),
        (r"\binom", "dbinom tbinom"),
        (r"\ge", "geqslant geq >="),
        (r"\le", "leqslant leq <="),
        (r"\ne", "neq !="),
        (r"\times", "cdot ast *"),
        (r"\dots", "cdots ldots dotsc"),
        (r"\infty", "infinity inf oo"),
        ("|", "lvert rvert vert mid"),
        *((r"\emptyset", "varnothing"), (r"\quad", "qquad"), (r"\log", "lg"), (r"\circ", "degree")),
        *(("^", "**"), (">", "gt"), ("<", "lt"), (":", "colon"), (r"\{", "lbrace")),
        (r"\}", "rbrace"),
    )
    for name in names.split()
}
_CALCULATOR = (*FUNCTIONS, "sqrt", "pi", "infinity", "inf", "oo")
_SMALL_WORDS = words("two and or not is the no odd all one up of to at in by")
_WORD = re.compile("[^aeiou][aeiou][^aeiou]|(?=.*[aeiou]).{4,}", re.IGNORECASE)
_SIGNS = str.maketrans(
    {
        **dict.fromkeys("\u00d7\u00b7\u22c5", r"\times "),
        **{"\u00f7": r"\div ", "\u221e": r"\infty ", "\u222a": r"\cup ", "\u22c3": r"\cup "},
        **{"\u2208": r"\in ", "\u2264": r"\le ", "\u2265": r"\ge ", "\u2a7d": r"\le "},
        **{"\u2a7e": r"\ge ", "\u2260": r"\ne ", "\u2248": r"\approx ", "\u2205": r"\emptyset "},
        **{"\u2220": r"\angle ", "\u00b0": r"^\circ ", "\u00b1": r"\pm ", "\u221a": r"\sqrt "},
        **{"\u2026": r"\dots ", "\u22ef": r"\dots ", "\u2044": "/", "\u2032": "'", "\u3002": "."},
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
        **dict.fromkeys("\u200b\u2061\u2713\u2714"),
        **{chr(0x3B1 + place): f"\\{name} " for place, name in enumerate(GREEK)},
        **{chr(0x391 + place): f"\\{name.capitalize()} " for place, name in enumerate(GREEK)},
    }
)
# Rules for a text before it is cut into tokens, in this order.
_RULES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    ("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207b]+", lambda run: f"^{{{_nfkc(run[0])}}}"),
    (
        "[\u00bc-\u00be\u2150-\u215e]",
        lambda part: r" \frac{" + _nfkc(part[0]).replace("\u2044", "}{") + "}",
    ),
    (r"\.{3}", r"\\dots "),
    (r"(?<=\d)\s{0,9}x\s{0,9}(?=10\^)", r"\\times "),  # 6 x 10^2
    (r"(?i:\b([ap])\.\s?m\b\.?)", r"\\text{\1m}"),
    (r"(\\[dtc]?(?:frac|binom))\s*(\d)\s*(?=\d|\{)", r"\1{\2}"),
    (r"(\\[dtc]?(?:frac|binom)\{[^{}]*\})\s*(\d)", r"\1{\2}"),
    (
        r"(?<![\d.,^_/])\d{1,3}"
        r"(?:(?:\s{0,9}(?:\{,\}|,?\s{0,9}\\!|\\[,;: ]|~)\s{0,9}|\s{1,9})\d{3})++(?![\d/])",
        lambda number: re.sub(r"\D", "", number[0]),
    ),
)
_TOKEN = re.compile(
    r"(?P<space>\s+|~|\\[,;:! ])"
    r"|(?P<date>\d{4}([/-])\d\d?\3\d\d?(?![\d/.])|\d\d?/\d\d?/\d{4}(?![\d/.]))"
    # (1,234) is a point, and 2e-1 may be a difference.
    r"|(?P<number>(?<![(\[,.\d])(?<!\\\{)\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?"
    r"|(?:\d+\.\d+|1(?=e[+-])|\d+(?=e\d))e[+-]?\d{1,3}(?![\w^.])"
    r"|(?:\d+(?:\.\d*)?|\.\d+)\\(?:overline|bar|dot)\{\d+\}"
    r"|(?<![\^_])\d+\s*\\[dtc]?frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\}|\d+\s+\d+/\d+|\d+(?:\.\d+)?|\.\d+)"
    r"|(?P<command>\\[A-Za-z]+|\\.)"
    r"|(?P<letters>k?m/[sh](?![a-z])|[A-Za-z]+)"
    r"|(?P<mark>\*\*|<=|>=|!=|.)",
    re.DOTALL | re.IGNORECASE,
)


def tokens(text: str, most: int = MAX_TOKENS) -> tuple[Token, ...]:
    """The text's tokens without styles, spaces, and the braces around one token.

    `$` stays, as the border of a formula in a question. Raises Unreadable for a text that is too
    long.
    """
    found: list[Token] = []
    for token in _tokens(_plain(text), in_text=False):
        if token.text == "}" and len(found) > 1 and found[-2].text == "{":
            found[-2:] = [found[-1]]
        else:
            found.append(token)
    if len(found) > most:
        raise Unreadable
    return tuple(found)


def _plain(text: str) -> str:
    for pattern, replacement in _RULES[:2]:
        text = re.sub(pattern, replacement, text)
    text = _nfkc(text.translate(_SIGNS)).translate(_SIGNS)
    for pattern, replacement in _RULES[2:]:
        text = re.sub(pattern, replacement, text)
    return text


def _nfkc(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def _tokens(text: str, *, in_text: bool) -> list[Token]:
    found: list[Token] = []
    at = 0
    while match := _TOKEN.match(text, at):
        kind, piece, at = str(match.lastgroup), match[0], match.end()
        if kind == "letters":
            found += _letters(piece, found, in_text=in_text)
        elif kind == "command":
            inner, at = _command(piece.removeprefix("\\"), text, at)
            found += inner
        elif kind != "space":
            same = re.sub(r"\b0+(?=\d)", "", piece) if kind == "date" else _SAME.get(piece, piece)
            found.append(Token(kind, same))
    return found


def _mark(name: str) -> Token:
    return Token("mark", _SAME.get(name, f"\\{name}"))


def _letters(run: str, before: list[Token], *, in_text: bool) -> list[Token]:
    """A run of letters as a function, a word, a name of capitals such as AB, or single letters."""
    low = run.lower()
    if not in_text and (low in FUNCTIONS or run in _CALCULATOR):
        return [_mark(low)]
    counted = bool(before) and (before[-1].kind in ("number", "word") or before[-1].text in "()}")
    unit = counted and len(run) > 1 and (run in UNITS or low in UNITS)
    plural = len(run) > 2 and run[:-1].isupper() and run[-1] == "s"
    wordy = _WORD.fullmatch(run) and (len(run) > 3 or not run.isupper())
    if in_text or wordy or plural or unit or low in _SMALL_WORDS:
        unchanged = len(run) <= 2 and low not in (*_SMALL_WORDS, "am", "pm")  # mL is no ML
        return [Token("word", run if unchanged else low)]
    return [Token("symbol", name) for name in ([run] if run.isupper() else run)]


def _command(name: str, text: str, at: int) -> tuple[list[Token], int]:
    """The tokens of a command at a position, with its argument if that changes its meaning."""
    if name in _IGNORED:
        return [], at
    if name in ("color", "textcolor"):
        return [], _group(text, at)[1]
    if name in ("begin", "end"):
        content, at = _group(text, at)
        if content == "array" and name == "begin":
            at = _group(text, at)[1]
        return [Token("mark", f"{name}:{content.strip('*')}")], at
    if name not in _TEXTS and name not in _ACCENTS:
        return [_mark(name)], at
    content, at = _group(text, at)
    inner = _tokens(content, in_text=name in _TEXTS)
    if name in _TEXTS or all(token.kind == "number" for token in inner):
        return inner, at
    spelt = "".join(token.text for token in inner)
    return [Token("symbol", f"{_ACCENTS[name]}({spelt})")], at


def _group(text: str, at: int) -> tuple[str, int]:
    """The content of the group in braces at a position, or the one character there, and its end."""
    while text[at : at + 1].isspace():
        at += 1
    if text[at : at + 1] != "{":
        return text[at : at + 1], at + 1
    depth = 0
    for end in range(at, len(text)):
        depth += ((text[end] == "{") - (text[end] == "}")) * (text[end - 1] != "\\")
        if depth == 0:
            return text[at + 1 : end], end + 1
    raise Unreadable
