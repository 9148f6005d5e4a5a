"""Convert rows of a data set to problems, and record why others cannot be used."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from pydantic import BaseModel, Field

from pubswap_client.data.rewriting import right_response, wrong_response
from pubswap_client.data.spec import DataSpec, SourceName
from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.problems import Problem

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


class LeftOut(BaseModel, extra="forbid"):
    """Rows that could not be used for one reason, with the places of the first ones."""

    reason: str
    rows: int = 0
    first: list[str] = []
    fault: bool = Field(default=True, exclude=True)


class Tally:
    """The rows that were left out, by reason."""

    def __init__(self) -> None:
        self.reasons: dict[str, LeftOut] = {}

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
    problems: Iterable[Problem], tally: Tally, key: Callable[[Problem], str]
) -> list[Problem]:
    """The first problem of each key, in order."""
    distinct: dict[str, Problem] = {}
    for problem in problems:
        if distinct.setdefault(key(problem), problem) is not problem:
            tally.add("the same question again", problem.id, fault=False)
    return list(distinct.values())


Score = Callable[[str, Sequence[tuple[str, Problem]]], list[float]]

UNREAD = "answer: not read by its own verifier"

# Too few answers for their share to mean anything.
_ENOUGH = 256
_CHUNK = 512


def unread(problems: Sequence[Problem], default: str | None, score: Score) -> list[Problem]:
    """The problems whose verifier, or else `default`, misreads their own answer."""
    cases: list[tuple[str, Problem]] = []
    expected: list[float] = []
    for problem in problems:
        verifier = problem.verifier or default or "exact"
        cases.append((right_response(verifier, problem.answer), problem))
        expected.append(1.0)
        if (wrong := wrong_response(verifier, problem.answer)) is not None:
            cases.append((wrong, problem))
            expected.append(0.0)
    rewards = score(default or "exact", cases)
    misread = {
        problem.id
        for (_, problem), reward, due in zip(cases, rewards, expected, strict=True)
        if reward != due
    }
    return [problem for problem in problems if problem.id in misread]


def verified(
    problems: Iterator[Problem], quota: int, score: Score, tally: Tally
) -> Iterator[Problem]:
    """The first `quota` problems, or all, that can be rewarded or leave the verifier to the run.

    Checks only as many as needed, because verifying 100,000 answers takes long. Counts answers that
    are not read in `tally`. Raises InvalidProblems as soon as they are clearly more than 5 %,
    because these answers are then of another kind.
    """
    checked, misread = 0, list[Problem]()

    def check() -> None:
        if len(misread) > MAX_FAULT_SHARE * checked:
            first = misread[0]
            raise InvalidProblems(
                f"answer: {len(misread)} of {checked} are not read by their own verifier, such as "
                f"{first.answer[:80]!r} of {first.id} by {first.verifier}. No response to them "
                "could be rewarded."
            )

    while more := list(islice(problems, min(quota, _CHUNK))):
        wrong = unread([problem for problem in more if problem.verifier is not None], None, score)
        for problem in wrong:
            tally.add(f"{UNREAD}, {problem.verifier}", problem.id)
        checked += len(more)
        misread += wrong
        if checked >= _ENOUGH:
            check()
        bad = {problem.id for problem in wrong}
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
