"""A file of private problems, read to its end to find every fault and not only the first."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.problems import Problem, parse_problem, read_jsonl


@dataclass(frozen=True)
class ProblemFile:
    """A file's usable problems, and the faults of its other lines."""

    path: Path
    problems: tuple[Problem, ...]
    faults: tuple[str, ...]  # of lines that are not problems
    repeated: tuple[str, ...]  # `line 7 (id)` for an id that occurred before
    places: Mapping[str, str]  # such as "line 7", by id

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a whole file; raises InvalidProblems if that is impossible."""
        problems, faults, repeated = [], [], []
        places: dict[str, str] = {}
        for number, line in read_jsonl(path):
            try:
                problem = parse_problem(line, f"line {number}")
            except InvalidProblems as error:
                faults.append(error.detail)
                continue
            if problem.id in places:
                repeated.append(f"line {number} ({problem.id})")
                continue
            places[problem.id] = f"line {number}"
            problems.append(problem)
        return cls(path, tuple(problems), tuple(faults), tuple(repeated), places)
