"""Convert rows of a data set to problems, and record why others cannot be used."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from pubswap_client.data.golds import Fault, Score, contradictions, unread
from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.problems import Problem

MAX_FAULT_SHARE = 0.05


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


class Tally:
    """The rows that were left out, by reason, and all unusable answers with their places."""

    def __init__(self) -> None:
        self.reasons: dict[str, list[str]] = defaultdict(list)  # the places
        self.faults: list[Fault] = []
        self.places: dict[str, str] = {}  # of problems by id, such as "line 3"

    def add_fault(self, reason: str, fault: Fault) -> None:
        self.faults.append(fault)
        self.reasons[reason].append(self.place(fault.problem))

    def place(self, problem: Problem) -> str:
        return self.places.get(problem.id, problem.id)


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
            tally.reasons["the same question again"].append(problem.id)
    return list(distinct.values())


UNREAD = "answer: not read by its own verifier"

_CHUNK = 512


def verified(
    problems: Iterable[Problem], quota: int, score: Score, tally: Tally
) -> Iterator[Problem]:
    """The first `quota` problems, or all, that can be rewarded or leave the verifier to the run.

    Checks only as many as needed, because verifying 100,000 answers takes long. Adds unusable
    answers to `tally`. Raises InvalidProblems if they are more than 5 %, because the answers are
    then of another kind.
    """
    checked, faults = 0, list[Fault]()
    rest = iter(problems)
    while more := list(islice(rest, min(quota, _CHUNK))):
        wrong = unread(more, None, score)
        for fault in wrong:
            tally.add_fault(f"{UNREAD}, {fault.verifier or 'any'}: {fault.reason}", fault)
        checked += len(more)
        faults += wrong
        bad = {fault.problem.id for fault in wrong}
        read = [problem for problem in more if problem.id not in bad]
        quota -= len(read)
        yield from read
    if len(faults) > MAX_FAULT_SHARE * checked:
        first = faults[0]
        raise InvalidProblems(
            f"answer: {len(faults)} of {checked} are not read by their own verifier, such as "
            f"{first.problem.answer[:80]!r} of {tally.place(first.problem)} by "
            f"{first.verifier or 'any'}: {first.reason}. No response to them could be rewarded."
        )
