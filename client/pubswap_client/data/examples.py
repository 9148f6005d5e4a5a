"""Convert rows of a data set to problems, and record why others cannot be used."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from pydantic import BaseModel, Field

from pubswap_client.data.golds import Fault, Score, contradictions, unread
from pubswap_client.data.spec import DataSpec, SourceName
from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.problems import Problem
from pubswap_protocol.prompts import Prompt

NAMED = 5
MAX_FAULT_SHARE = 0.05


@dataclass(frozen=True)
class Example:
    """A usable row. Rows with equal `identity` are the same question, wherever they are."""

    identity: str
    prompt: str
    answer: str
    topic: str

    def problem(self, prefix: str, verifier: str) -> Problem:
        """The problem; its id depends on the question alone, not on files or their order."""
        normal = " ".join(self.identity.split())
        digest = hashlib.sha256(normal.encode()).hexdigest()[:16]
        return Problem(
            id=f"{prefix}-{digest}",
            prompt=self.prompt,
            answer=self.answer,
            topic=self.topic,
            verifier=verifier,
        )


class Unusable(Exception):
    """This row cannot be a problem. `fault`: the row is broken, not just of another kind."""

    def __init__(self, reason: str, fault: bool = True) -> None:
        """`reason` is counted and named in the manifest; it names the column."""
        super().__init__(reason)
        self.reason = reason
        self.fault = fault


def reason_of(error: Exception) -> str:
    """The first line of another library's error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


class LeftOut(BaseModel, extra="forbid"):
    """Rows that could not be used for one reason, with the places of the first ones."""

    reason: str
    rows: int = 0
    first: list[str] = []
    fault: bool = Field(default=True, exclude=True)


class Tally:
    """The rows that were left out, by reason, and all unusable answers with their places."""

    def __init__(self) -> None:
        self.reasons: dict[str, LeftOut] = {}
        self.faults: list[Fault] = []
        self.places: dict[str, str] = {}  # of problems by id, such as "line 3"

    def add_fault(self, reason: str, fault: Fault) -> None:
        self.faults.append(fault)
        self.add(reason, self.place(fault.problem))

    def place(self, problem: Problem) -> str:
        return self.places.get(problem.id, problem.id)

    def add(self, reason: str, where: str, fault: bool = True) -> None:
        self.merge(LeftOut(reason=reason, rows=1, first=[where], fault=fault))

    def merge(self, more: LeftOut) -> None:
        total = self.reasons.setdefault(more.reason, LeftOut(reason=more.reason, fault=more.fault))
        total.rows += more.rows
        total.first = [*total.first, *more.first][:NAMED]

    def check(self, name: str, rows: int) -> None:
        """Raises InvalidProblems if more than 5 % of the rows of the set `name` are broken."""
        faults = sum(omission.rows for omission in self.reasons.values() if omission.fault)
        if faults > MAX_FAULT_SHARE * rows:
            reasons = "; ".join(
                f"{omission.rows} {omission.reason} (such as {omission.first[0]})"
                for omission in self.reasons.values()
            )
            raise InvalidProblems(f"{faults} of {rows} rows of {name} cannot be used: {reasons}.")


def unique(
    problems: Sequence[Problem], tally: Tally, key: Callable[[Problem], str]
) -> list[Problem]:
    """The first problem of each key, in order; none of those that contradict each other."""
    contradicted = contradictions(problems)
    for fault in contradicted:
        tally.add_fault(f"answer: {fault.reason}", fault)
    bad = {id(fault.problem) for fault in contradicted}
    distinct: dict[str, Problem] = {}
    for problem in problems:
        if id(problem) not in bad and distinct.setdefault(key(problem), problem) is not problem:
            tally.add("the same question again", problem.id, fault=False)
    return list(distinct.values())


UNREAD = "answer: not read by its own verifier"

# A file of a usual size is checked as a whole, so that all of its faults are listed.
_ENOUGH = 8192
_CHUNK = 512


def verified(
    problems: Iterator[Problem], quota: int, score: Score, tally: Tally
) -> Iterator[Problem]:
    """The first `quota` problems, or all, that can be rewarded or leave the verifier to the run.

    Checks only as many as needed, because verifying 100,000 answers takes long. Adds unusable
    answers to `tally`. Raises InvalidProblems if they are more than 5 %, because the answers are
    then of another kind.
    """
    checked, faults = 0, list[Fault]()

    def check() -> None:
        if len(faults) > MAX_FAULT_SHARE * checked:
            first = faults[0]
            raise InvalidProblems(
                f"answer: {len(faults)} of {checked} are not read by their own verifier, such as "
                f"{first.problem.answer[:80]!r} of {tally.place(first.problem)} by "
                f"{first.verifier or 'any'}: {first.reason}. No response to them could be rewarded."
            )

    while more := list(islice(problems, min(quota, _CHUNK))):
        wrong = unread(more, None, score)
        for fault in wrong:
            tally.add_fault(f"{UNREAD}, {fault.verifier or 'any'}: {fault.reason}", fault)
        checked += len(more)
        faults += wrong
        if checked >= _ENOUGH:
            check()
        bad = {fault.problem.id for fault in wrong}
        read = [problem for problem in more if problem.id not in bad]
        quota -= len(read)
        yield from read
    check()


BOXED = "Let's think step by step and output the final answer within \\boxed{}."
LETTER = 'Think step by step. End with a line "Answer: " and the letter of the one right option.'

_INSTRUCTIONS: Mapping[SourceName, str] = {
    "math": BOXED,
    "deepmath": BOXED,
    "medical": LETTER,
    "gsm8k": BOXED,
}


def ask(question: str, spec: DataSpec) -> str:
    """The whole prompt: the question, and the instruction on how to answer."""
    suffix = _INSTRUCTIONS.get(spec.source, "") if spec.instruction is None else spec.instruction
    return f"{question.strip()}\n\n{suffix}" if suffix else question.strip()


def asked(prompt: Prompt, spec: DataSpec) -> Prompt:
    """The same of a prompt of messages: the instruction ends the last one."""
    if isinstance(prompt, str):
        return ask(prompt, spec)
    *earlier, last = prompt
    return (*earlier, last.model_copy(update={"content": ask(last.content, spec)}))
