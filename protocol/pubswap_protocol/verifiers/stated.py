"""The answer that a sentence states, as LaTeX, for responses without a box."""

import re

# So much of a sentence is read at most.
_MOST = 4000

_ANSWER = re.compile(r"\banswer\*{0,2}(?:\s{1,9}is\b\*{0,2}:?|\s{0,9}:)[\s*]*+", re.IGNORECASE)
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_LEAD = re.compile(r"[^\d$\\\n]*+")
_AND = re.compile(r"[\s*,;]*+(?:and\b|or\b)?\s*+")
_END = re.compile(r"\.(?=\s)|\n")
_MORE = re.compile(r"[\s*,;/(]*+(?:and\b|or\b)?\s*+[-\d$\\]|.*\bor\b.*\d", re.DOTALL)


def stated_answer(text: str) -> str | None:
    """What follows the last "answer is" or "answer:"; None if the text says neither."""
    anchors = list(_ANSWER.finditer(text))
    return formulas_of(text[anchors[-1].end() :]) if anchors else None


def formulas_of(text: str) -> str:
    """The formula that a text goes on with, or several as a list; else its first sentence."""
    text = text[:_MOST].strip()
    formulas: list[str] = []
    lead = _LEAD.match(text)
    end = at = lead.end() if lead else 0
    while formula := _FORMULA.match(text, at):
        formulas.append(next(filter(None, formula.groups())))
        end = formula.end()
        joint = _AND.match(text, end)
        at = joint.end() if joint else end
    # "$41$ or 42 apples" is no answer, as a list of its formulas alone would be.
    if formulas and not _MORE.match(_END.split(text[end:], 1)[0]):
        return ", ".join(formulas)
    return _END.split(text, 1)[0].strip(" *").rstrip(" .*")


def only_line(text: str) -> str | None:
    """A text of one line."""
    return None if "\n" in text.strip() else text
