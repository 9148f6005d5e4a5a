"""The forms in which two answers are the same text."""

import re
import unicodedata

_COMMAND = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf)\{([^{}]*+)\}")
_OPENING = " \t\r\n*_`\"'\u2018\u201c\u201e\u00ab"
_CLOSING = " \t\r\n*_`\"'\u2019\u201c\u201d\u00bb.,;:!?"


def folded(text: str) -> str:
    """The text without differences of case, white space and Unicode form."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(folded.split())


def bare(answer: str) -> str:
    """The answer without quotes, emphasis and the full stop around it."""
    return _COMMAND.sub(r"\1", answer).lstrip(_OPENING).rstrip(_CLOSING)
