"""`regex`: text of a given form, such as a case number or a layout."""

from importlib.util import find_spec
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StrictBool

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.extract import extract_answer
from pubswap_protocol.verifiers.verifier import VERIFIERS, Verifier

_MAX_CHARACTERS = 1000
_MAX_SEARCHED = 100  # for the place of a fault, which takes a compilation for each character
# Instructions of a compiled pattern. The longest response takes two seconds at most.
_MAX_PROGRAM = 4000
_MAX_MEMORY = 2 << 20
_ANSWER = "{answer}"

# Plain words for RE2's messages about what Python's patterns have besides.
_PLAIN = {
    r"invalid escape sequence: \Z": "RE2 has no \\Z; a pattern matches to the end anyway",
    **{
        f"invalid escape sequence: \\{n}": "RE2 cannot refer to a group; write its pattern again"
        for n in range(1, 10)
    },
    **dict.fromkeys(
        [f"invalid perl operator: (?{sign}" for sign in ("=", "!", "<=", "<!")],
        "RE2 has no look-around; describe the whole text instead",
    ),
    "invalid perl operator: (?>": "RE2 has no atomic groups, and needs none: leave out ?>",
    "bad repetition operator: ++": "RE2 has no possessive repetition, and needs none: use +",
    "bad repetition operator: *+": "RE2 has no possessive repetition, and needs none: use *",
    "bad repetition operator: ?+": "RE2 has no possessive repetition, and needs none: use ?",
}


def _compiled(pattern: str) -> Any:
    """RE2's program, which it keeps; raises re2.error."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MAX_MEMORY
    return re2.compile(pattern, options)


def _refusal(pattern: str) -> str | None:
    """RE2's message about a pattern that it does not take."""
    import re2

    try:
        _compiled(pattern)
    except re2.error as error:
        told = error.args[0]
        return str(told.decode(errors="replace") if isinstance(told, bytes) else told)
    return None


def _usable(pattern: str) -> str:
    if not pattern:  # it may be the problem's
        return pattern
    if find_spec("re2") is None:
        raise ValueError("it needs google-re2, which is not installed: pip install google-re2")
    told = _refusal(pattern)
    if told is None:
        if _compiled(pattern).programsize <= _MAX_PROGRAM:
            return pattern
        told = "pattern too large"
    if told.startswith("pattern too large"):
        raise ValueError("it is too large; use fewer or smaller repetitions, such as {0,100}")
    words, _, culprit = told.partition(": ")
    message = _PLAIN.get(told, words if culprit == pattern else f"{words} {culprit}".strip())
    if len(pattern) > _MAX_SEARCHED:
        raise ValueError(message)
    raise ValueError(f"at character {_position(pattern, words, culprit) + 1}: {message}")


def _position(pattern: str, words: str, culprit: str) -> int:
    """Where the text is that RE2's message quotes, from 0."""
    if words in ("missing ]", "trailing \\"):
        return len(pattern) - max(len(culprit), 1)
    beginnings = (pattern[:end] for end in range(len(pattern) + 1))
    if words == "missing )":
        return max(len(text) for text in beginnings if _refusal(text) is None)
    # RE2 quotes the whole pattern where it has a bracket too much.
    quoted = [(text, text if culprit == pattern else culprit) for text in beginnings]
    first, quote = next(pair for pair in quoted if _refusal(pair[0]) == f"{words}: {pair[1]}")
    return len(first) - 1 if first == quote else first.rfind(quote)


Pattern = Annotated[str, Field(max_length=_MAX_CHARACTERS, strict=True), AfterValidator(_usable)]


@VERIFIERS.register
class RegexMatch(Verifier):
    """Correct if the whole answer matches a pattern of RE2, whose time is linear.

    Nothing matches an empty answer. The problem's answer is an example that must match.
    """

    name = "regex"
    library = "google-re2"
    by_problem = frozenset({"pattern"})

    pattern: Pattern = Field(
        default="",
        description="RE2's syntax: as Python's, without look-around and references to groups. "
        "(?i) ignores case, and with (?s) a dot matches a line's end, too.",
    )
    whole: StrictBool = Field(
        default=False,
        description="Match the whole response, reasoning included, and not only its answer.",
    )
    example: Annotated[str, Field(max_length=2000, strict=True)] = Field(
        default=f"<answer>{_ANSWER}</answer>",
        description="A response that matches, if `whole` is true; {answer} stands for the answer.",
    )

    def score(self, response: str, problem: Problem) -> float:
        text = (response if self.whole else extract_answer(response)).strip()
        if not self.pattern or not text:
            return 0.0
        # A lone surrogate is no UTF-8, but RE2 takes it for a character.
        return float(bool(_compiled(self.pattern).fullmatch(text.encode(errors="surrogatepass"))))

    def fault(self, problem: Problem) -> str | None:
        if not self.pattern:
            return "there is no pattern; set it in the run's verifier or in metadata.pattern"
        if self.score(self.right_response(problem), problem):
            return None
        if self.whole:
            return f"the pattern does not match `example` with the answer {problem.answer[:40]!r}"
        return f"the pattern does not match the answer {problem.answer[:40]!r}"

    @property
    def is_form(self) -> bool:
        return self.whole

    def right_response(self, problem: Problem) -> str:
        if self.whole:
            return self.example.replace(_ANSWER, problem.answer)
        return super().right_response(problem)
