"""One row of a data set, made a problem, or the reason why it cannot be one."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.problems import Problem

NAMED = 5
MOST_FAULTS = 0.05


@dataclass(frozen=True)
class Example:
    """A usable row. `identity` is what makes two rows the same question, wherever they are."""

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
    """This row cannot be a problem. `fault`: the row is broken, rather than of another kind."""

    def __init__(self, reason: str, fault: bool = True) -> None:
        """`reason` is counted and named in the manifest; it names the column."""
        super().__init__(reason)
        self.reason = reason
        self.fault = fault


@dataclass
class Skipped:
    """How many rows were left out for one reason, and where the first of them are."""

    fault: bool
    rows: int = 0
    first: list[str] = field(default_factory=list)


class Tally:
    """The rows that were left out, by reason."""

    def __init__(self) -> None:
        """None yet."""
        self.reasons: dict[str, Skipped] = {}

    def add(self, reason: str, where: str, fault: bool = True) -> None:
        """Count one row."""
        skipped = self.reasons.setdefault(reason, Skipped(fault))
        skipped.rows += 1
        if len(skipped.first) < NAMED:
            skipped.first.append(where)

    def extend(self, other: "Tally") -> None:
        """Count the rows of another tally too."""
        for reason, more in other.reasons.items():
            skipped = self.reasons.setdefault(reason, Skipped(more.fault))
            skipped.rows += more.rows
            skipped.first = [*skipped.first, *more.first][:NAMED]

    def check(self, name: str, rows: int) -> None:
        """Raises InvalidProblems if more than 5 % of the rows of the set `name` are broken."""
        faults = sum(skipped.rows for skipped in self.reasons.values() if skipped.fault)
        if faults > MOST_FAULTS * rows:
            raise InvalidProblems(
                f"{faults} of {rows} rows of {name} cannot be used: {self.text()}."
            )

    def text(self) -> str:
        """Each reason with its count and the first rows."""
        return "; ".join(
            f"{skipped.rows} {reason} (such as {skipped.first[0]})"
            for reason, skipped in self.reasons.items()
        )


def unique(
    problems: Iterable[Problem], tally: Tally, key: Callable[[Problem], str]
) -> list[Problem]:
    """The first problem of each key, in order."""
    kept: dict[str, Problem] = {}
    for problem in problems:
        if kept.setdefault(key(problem), problem) is not problem:
            tally.add("the same question again", problem.id, fault=False)
    return list(kept.values())
