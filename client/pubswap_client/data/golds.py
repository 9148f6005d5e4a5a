"""Reference answers ("golds") that no right response can earn, or that a wrong one can.

`data prepare`, `client doctor` and `run create` all apply these rules.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.problems import Problem, is_blank
from pubswap_protocol.verifiers.choice import SEVERAL, MultipleChoice
from pubswap_protocol.verifiers.extract import last_boxed
from pubswap_protocol.verifiers.registry import Given, judge_of
from pubswap_protocol.verifiers.verifier import Mathematical, Verifier

Score = Callable[[Given, Sequence[tuple[str, Problem]]], list[float]]

_CONTROLLED = "a control character, as where JSON has \\frac or \\times for \\\\frac"
MISREAD = "a response with this very answer scores 0, or an empty one 1"
CONTRADICTED = "the same prompt has another answer elsewhere"

_MARKS = re.compile(r"####|<<.*>>|\b(?:answer|solution)\b\s*(?:is\b|:)", re.IGNORECASE)
_TEXT = re.compile(r"\\(?:text\w*|mbox|mathrm)\s?\{[^{}]*\}|\\[A-Za-z]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")  # all but the tab
_VERB = re.compile(
    r"\b(?:is|are|was|were|has|have|had|gets?|equals|gives|so|thus|hence|therefore|because|since"
    r"|we|she|he|they|it|there)\b",
    re.IGNORECASE,
)
_NEWLINE_COMMAND = re.compile(r"\n(?:eq?|u|abla|ot|i|mid)\b")  # \neq, \nu, ... as JSON reads them
# \frac, \beta, \times, \text{ and \rho in a prompt; a page break or tab by itself is usual.
_LOST = re.compile("\f(?:rac|box)|\x08|\t(?:imes|heta)\\b|\text\\{|\rho\\b")


@dataclass(frozen=True)
class Fault:
    """A problem whose reference answer is unusable under a verifier, and the reason."""

    problem: Problem
    verifier: str | None
    reason: str


def text_fault(problem: Problem, given: Given | None) -> str | None:
    """The reason for which a problem's answer is unusable by its text; None if there is none.

    Without a verifier, which the run then names, only the rules of all of them count.
    """
    answer = problem.answer
    verifier = judge_of(problem, given) if problem.verifier or given else None
    if is_blank(answer):
        return "it is blank"
    if _lost_backslash(answer, verifier):
        return f"it has {_CONTROLLED}"
    if answer.strip().casefold() == "nan":
        return "it is NaN, which pandas writes for a missing value"
    if _LOST.search(problem.text):
        return f"its prompt has {_CONTROLLED}"
    if verifier is None:
        return None
    try:
        if fault := verifier.on(problem).fault(problem):
            return fault
    except InvalidProblems as error:
        return error.detail
    if not isinstance(verifier, Mathematical):
        return None
    content = last_boxed(answer) or answer
    if SEVERAL.fullmatch(content.strip()):
        return f"it is several letters, which {verifier} multiplies; exact compares them"
    return "it is a worked solution, not an answer" if _is_solution(content) else None


def _lost_backslash(answer: str, verifier: Verifier | None) -> bool:
    lines = answer.rstrip().replace("\r\n", "\n").replace("\n", " ")
    if isinstance(verifier, Mathematical | MultipleChoice):
        return "\t" in lines or bool(_CONTROL.search(lines) or _NEWLINE_COMMAND.search(answer))
    return bool(_CONTROL.search(lines))  # a text to be repeated exactly may have columns


def _is_solution(answer: str) -> bool:
    """Whether it is a sentence with a number."""
    plain = _TEXT.sub(" ", answer)
    sentence = _VERB.search(plain) and re.search(r"\d", plain)
    return bool(_MARKS.search(answer) or sentence)


def text_faults(problems: Iterable[Problem], default: Given | None) -> list[Fault]:
    """The problems with a fault in the text of their answer."""
    return [
        Fault(problem, _name(problem, default), reason)
        for problem in problems
        if (reason := text_fault(problem, default))
    ]


def _name(problem: Problem, default: Given | None) -> str | None:
    return str(judge_of(problem, default)) if problem.verifier or default else None


def contradictions(problems: Iterable[Problem]) -> list[Fault]:
    """The problems with the prompt of another but a different answer: one of them is wrong.

    A problem with metadata is judged by that, and its answer may be one of several.
    """
    groups: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        if not problem.metadata:
            groups[" ".join(problem.text.split())].append(problem)
    return [
        Fault(problem, problem.verifier, CONTRADICTED)
        for group in groups.values()
        if len({_bare(problem.answer) for problem in group}) > 1
        for problem in group
    ]


def too_long(problems: Sequence[Problem], most: int, length: Callable[[str], int]) -> list[Fault]:
    """The problems whose answer alone has more than `most` tokens, counted by `length`.

    A right response to them must be written otherwise, such as a query that is shorter.
    """
    counts = [length(last_boxed(problem.answer) or problem.answer) for problem in problems]
    return [
        Fault(problem, None, f"it has {count} tokens, and a response at most {most}")
        for problem, count in zip(problems, counts, strict=True)
        if count > most
    ]


def _bare(answer: str) -> str:
    return "".join(unicodedata.normalize("NFKC", answer).replace("$", "").split())


def unread(problems: Sequence[Problem], default: Given | None, score: Score) -> list[Fault]:
    """The problems whose answer has a fault in its text, or is not read by its verifier.

    `default` replaces a missing verifier; if it is None, too, only the text is checked.
    """
    faults = {fault.problem.id: fault for fault in text_faults(problems, default)}
    judged = [
        (problem, judge_of(problem, default).on(problem))
        for problem in problems
        if (problem.verifier or default) and problem.id not in faults
    ]
    cases = [(verifier.right_response(problem), problem) for problem, verifier in judged]
    cases += [("", problem) for problem, _ in judged]
    rewards = score(default or "exact", cases) if cases else []
    for (problem, verifier), right, empty in zip(
        judged, rewards[: len(judged)], rewards[len(judged) :], strict=True
    ):
        if (right, empty) != (1.0, 0.0):
            faults[problem.id] = Fault(problem, str(verifier), MISREAD)
    return [faults[problem.id] for problem in problems if problem.id in faults]
