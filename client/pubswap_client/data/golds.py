"""Reference answers ("golds") that no right response can earn, or that a wrong one can.

`data prepare`, `client doctor` and `run create` all apply these rules.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pubswap_protocol.problems import Problem, is_blank
from pubswap_protocol.verifiers.choice import letter_of
from pubswap_protocol.verifiers.extract import last_boxed

MATHEMATICAL = ("math", "math-verify", "math-string")

Score = Callable[[str, Sequence[tuple[str, Problem]]], list[float]]

_CONTROLLED = "a control character, as where JSON has \\frac or \\times for \\\\frac"
MISREAD = "a response with this very answer scores 0, or an empty one 1"
CONTRADICTED = "the same prompt has another answer elsewhere"

_MARKS = re.compile(r"####|<<.*>>|\b(?:answer|solution)\b\s*(?:is\b|:)", re.IGNORECASE)
_TEXT = re.compile(r"\\(?:text\w*|mbox|mathrm)\s?\{[^{}]*\}|\\[A-Za-z]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")  # all but the tab
_WORD = re.compile(r"[A-Za-z]{2,}")
_FUNCTION = re.compile(
    r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|exp|lim|max|min|mod|gcd|lcm|deg|sqrt|pi|theta"
    r"|alpha|beta|gamma|inf|infinity|and|or",
    re.IGNORECASE,
)
_VERB = re.compile(
    r"\b(?:is|are|was|were|has|have|had|gets?|equals|gives|so|thus|hence|therefore|because|since"
    r"|we|she|he|they|it|there)\b",
    re.IGNORECASE,
)
_NEWLINE_COMMAND = re.compile(r"\n(?:eq?|u|abla|ot|i|mid)\b")  # \neq, \nu, ... as JSON reads them
# \frac, \beta, \times, \text{ and \rho in a prompt; a page break or tab by itself is usual.
_LOST = re.compile("\f(?:rac|box)|\x08|\t(?:imes|heta)\\b|\text\\{|\rho\\b")
_LETTERS = re.compile(r"\(?([A-J])\)?(?:[\s,;/&]*(?:and\s|or\s)?\s*\(?([A-J])\)?)+\.?")


@dataclass(frozen=True)
class Fault:
    """A problem whose reference answer is unusable under a verifier, and the reason."""

    problem: Problem
    verifier: str | None
    reason: str


def text_fault(answer: str, verifier: str | None) -> str | None:
    """The reason for which an answer is unusable by its text alone; None if there is none.

    Without a verifier, which the run then names, only the rules of all of them count.
    """
    if is_blank(answer):
        return "it is blank"
    if _lost_backslash(answer, verifier):
        return f"it has {_CONTROLLED}"
    if answer.strip().casefold() == "nan":
        return "it is NaN, which pandas writes for a missing value"
    if verifier == "choice" and not re.fullmatch("[A-J]", letter_of(answer)):
        several = _LETTERS.fullmatch(answer.strip())
        return "it names several letters, and choice rewards one" if several else "it is no letter"
    if verifier not in MATHEMATICAL:
        return None
    content = last_boxed(answer) or answer
    if several := _LETTERS.fullmatch(content.strip()):
        return f"it is several letters, which {verifier} multiplies; exact compares them"
    return "it is a worked solution, not an answer" if _is_solution(content) else None


def _lost_backslash(answer: str, verifier: str | None) -> bool:
    lines = answer.rstrip().replace("\r\n", "\n").replace("\n", " ")
    if verifier in (*MATHEMATICAL, "choice"):
        return "\t" in lines or bool(_CONTROL.search(lines) or _NEWLINE_COMMAND.search(answer))
    return bool(_CONTROL.search(lines))  # a text to be repeated exactly may have columns


def _is_solution(answer: str) -> bool:
    """Whether it is sentences: several words before a number, or a verb beside one."""
    if _MARKS.search(answer):
        return True
    plain = _TEXT.sub(" ", answer)
    number = re.search(r"\d", plain)
    if number is None:
        return False
    before = [w for w in _WORD.findall(plain[: number.start()]) if not _FUNCTION.fullmatch(w)]
    return len(before) > 1 or bool(_VERB.search(plain))


def text_faults(problems: Iterable[Problem], default: str | None) -> list[Fault]:
    """The problems with a fault in the text of their answer."""
    named = ((problem, problem.verifier or default) for problem in problems)
    return [
        Fault(problem, verifier, reason)
        for problem, verifier in named
        if (reason := text_fault(problem.answer, verifier) or _prompt_fault(problem.prompt))
    ]


def _prompt_fault(prompt: str) -> str | None:
    return f"its prompt has {_CONTROLLED}" if _LOST.search(prompt) else None


def contradictions(problems: Iterable[Problem]) -> list[Fault]:
    """The problems with the prompt of another but a different answer: one of them is wrong.

    A problem with metadata is judged by that, and its answer may be one of several.
    """
    groups: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        if not problem.metadata:
            groups[" ".join(problem.prompt.split())].append(problem)
    return [
        Fault(problem, problem.verifier, CONTRADICTED)
        for group in groups.values()
        if len({_bare(problem.answer) for problem in group}) > 1
        for problem in group
    ]


def _bare(answer: str) -> str:
    return "".join(unicodedata.normalize("NFKC", answer).replace("$", "").split())


def right_response(verifier: str, answer: str) -> str:
    """A response with the very answer, in the usual closing of its verifier."""
    if verifier in MATHEMATICAL:
        return f"Thus, the answer is:\n\\[ \\boxed{{{last_boxed(answer) or answer}}} \\]"
    if verifier == "choice":
        return f"The answer is a hard one to see.\n**Answer: ({letter_of(answer)})**"
    return f"The answer: see below.\n<answer>{answer}</answer>"


def unread(problems: Sequence[Problem], default: str | None, score: Score) -> list[Fault]:
    """The problems whose answer has a fault in its text, or is not read by its verifier.

    `default` replaces a missing verifier; if it is None, too, only the text is checked.
    """
    faults = {fault.problem.id: fault for fault in text_faults(problems, default)}
    judged = [
        (problem, verifier)
        for problem in problems
        if (verifier := problem.verifier or default) and problem.id not in faults
    ]
    cases = [(right_response(verifier, problem.answer), problem) for problem, verifier in judged]
    cases += [("", problem) for problem, _ in judged]
    rewards = score(default or "exact", cases) if cases else []
    for (problem, verifier), right, empty in zip(
        judged, rewards[: len(judged)], rewards[len(judged) :], strict=True
    ):
        if (right, empty) != (1.0, 0.0):
            faults[problem.id] = Fault(problem, verifier, MISREAD)
    return [faults[problem.id] for problem in problems if problem.id in faults]
