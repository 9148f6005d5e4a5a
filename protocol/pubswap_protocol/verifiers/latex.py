"""Plain LaTeX: without styles, and with LaTeX for Unicode's mathematical characters."""

import re
import unicodedata

TEXT = r"\\(?:text\w*|mbox|mathrm)\s?\{"
GAP = r"(?:[\s~]|\\[,;: ])"

_STYLE = re.compile(
    rf"\\(?:left|right)(?=\\[{{}}])|\\(?:large|huge|displaystyle)(?![A-Za-z])"
    rf"|\\(?:text)?color\s?\{{[^{{}}]*\}}|^\s*+{TEXT}[^{{}}\d]*\banswer(?:\s+is)?\b:?\s*\}}",
    re.IGNORECASE,
)
# The bar of \{x | ...\}.
_BAR = re.compile(r"(\\\{\s*+[a-z]\s*+)(?:\\mid\b|\\vert\b|:)")
_RAISED = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207b]+")
_ROOT = re.compile(r"\u221a\s*+(?:(\d++(?:\.\d++)?|[a-z])|\(([^()]*+)\))")
_UNICODE = str.maketrans(
    {
        "\u00d7": r"\times ",
        "\u00b7": r"\cdot ",
        "\u22c5": r"\cdot ",
        "\u2212": "-",
        "\u221a": r"\sqrt ",
        "\u221e": r"\infty ",
        "\u222a": r"\cup ",
        "\u2229": r"\cap ",
        "\u2208": r"\in ",
        "\u2a7d": r"\leq ",
        "\u2a7e": r"\geq ",
        "\u2205": r"\emptyset ",
        "\u00bc": r"\frac{1}{4}",
        "\u00bd": r"\frac{1}{2}",
        "\u00be": r"\frac{3}{4}",
    }
)
_PERCENT_WORD = re.compile(
    rf"(?<=\d){GAP}*+(?:{TEXT}{GAP}*+(?:\\?%|per\s?cent){GAP}*+\}}|per\s?cent\b)", re.IGNORECASE
)


def plain_latex(text: str) -> str:
    r"""The text in plain LaTeX, with one form of set-builder bars, empty sets and percent signs."""
    text = _BAR.sub(r"\1|", _STYLE.sub("", text)).replace(r"\varnothing", r"\emptyset")
    text = _RAISED.sub(lambda digits: f"^{{{unicodedata.normalize('NFKC', digits[0])}}}", text)
    text = _ROOT.sub(lambda root: rf"\sqrt{{{root[1] or root[2]}}}", text)
    return _PERCENT_WORD.sub(r"\%", text.translate(_UNICODE))
