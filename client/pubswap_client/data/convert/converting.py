"""Rows of a table to a file of problems, and a list of those that were left out."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

from pubswap_client.data.convert.numbers import (
    ColumnSurvey,
    Mark,
    decimal_marks,
    number_of,
    pointed,
)
from pubswap_client.data.convert.roles import TEXT, Roles
from pubswap_client.data.convert.table import OpenTable, Row, in_json
from pubswap_client.data.examples import Unusable
from pubswap_client.data.fault_list import beside, write_list
from pubswap_client.data.golds import text_fault
from pubswap_protocol.errors import InvalidProblems, InvalidSettings, NotSaved
from pubswap_protocol.files import remedy, write_stream
from pubswap_protocol.problems import Problem, as_written, parse_problem, problem_lines
from pubswap_protocol.verifiers import verifier_of

_SHOWN = 2


@dataclass
class TableSurvey:
    """What is in a table's columns."""

    rows: int
    columns: Mapping[str, ColumnSurvey]
    marks: Mapping[str, Mark]
    unclear: list[str]


def survey(table: OpenTable) -> TableSurvey:
    """Read the whole table once."""
    columns = {column: ColumnSurvey() for column in table.columns}
    rows = 0
    for row in table.rows():
        rows += 1
        for name, cell in () if row.fault else row.cells.items():
            columns[name].add(cell)
    marks, unclear = ({}, []) if table.typed else decimal_marks(columns)
    return TableSurvey(rows, columns, marks, unclear)


@dataclass
class Conversion:
    """A table on its way to problems. Iterate once; then the record is complete."""

    table: OpenTable
    roles: Roles
    survey: TableSurvey
    left_out: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    first: list[Problem] = field(default_factory=list)
    written: int = 0

    def __iter__(self) -> Iterator[Problem]:
        ids: set[int] = set()  # hashes, because tables may be large
        for row in self.table.rows():
            try:
                if row.fault:
                    raise Unusable(row.fault)
                reading = RowReading(row, self.roles, self.survey.marks)
                problem = _problem(reading.fields(self.table.unit))
                if (id_ := hash(problem.id)) in ids:
                    raise Unusable("id: it occurs before")
            except Unusable as error:
                self.left_out[error.reason].append(row.number)
                continue
            ids.add(id_)
            if self.written < _SHOWN:
                self.first.append(problem)
            self.written += 1
            yield problem


def write(problems: Iterable[Problem], out: Path) -> None:
    """Write the problems, if there are any.

    Raises NotSaved if the file cannot be written; there is none then.
    """
    lines = (problem_lines([problem]) for problem in problems)
    if (head := next(lines, None)) is None:
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_stream(out, chain([head], lines))
    except OSError as error:
        raise NotSaved(
            f"{out} could not be written: {error.strerror}; {remedy(error)}, or choose another "
            "--out."
        ) from None


def write_left_out(conversion: Conversion, out: Path) -> Path | None:
    """List all rows that were left out beside the problems, in their order; see `write_list`."""
    reasons = {n: reason for reason, numbers in conversion.left_out.items() for n in numbers}
    rows = ({conversion.table.unit: n, "reason": reason} for n, reason in sorted(reasons.items()))
    listing = beside(out, "left-out")
    return listing if write_list(listing, rows) else None


def _problem(fields: Mapping[str, Any]) -> Problem:
    """The problem with these fields; raises Unusable."""
    try:
        problem = parse_problem(json.dumps(fields), "")
        if problem.verifier:
            verifier_of(problem.verifier)
        # The run may give the verifier parameters, so its own check is the doctor's.
        fault = text_fault(problem.model_copy(update={"verifier": None}), None)
    except (InvalidProblems, InvalidSettings) as error:
        raise Unusable(error.detail.removeprefix(": ")) from None
    if fault:
        raise Unusable(f"answer: {fault}")
    return problem


@dataclass
class RowReading:
    """A row's cells as the fields of a problem. Raises Unusable."""

    row: Row
    roles: Roles
    marks: Mapping[str, Mark]

    def fields(self, unit: str) -> dict[str, Any]:
        """The fields that are not empty; `unit` is a part of the id if there is none."""
        roles = self.roles
        fields = {
            "id": self._optional(roles.id) or f"{unit}-{self.row.number}",
            "prompt": self._prompt(),
            "answer": self._answer(),
            "topic": self._optional(roles.topic),
            "verifier": self._optional(roles.verifier),
            "metadata": self._metadata(),
        }
        return {key: value for key, value in fields.items() if value}

    def _prompt(self) -> Any:
        part, cells = self.roles.prompt, self.row.cells
        if not part.is_template and isinstance(cells.get(part.source), list):
            return self._value(part.source)  # messages
        if all(cells.get(column) is None for column in part.columns):
            raise Unusable(f"prompt: nothing in {' and '.join(part.columns)}")
        text = part.filled(self._text) if part.is_template else self._text(part.source)
        return text.strip()

    def _answer(self) -> str:
        answers = self.roles.answers
        for column in answers.values():
            if self.row.cells.get(column) is None:
                raise Unusable(f"answer: nothing in {column}")
        if TEXT not in answers:
            values = {key: self._value(column) for key, column in answers.items()}
            return json.dumps(values, ensure_ascii=False)
        text = self._text(answers[TEXT]).strip()
        return pointed(text, ",") if self.marks.get(answers[TEXT]) == "," else text

    def _optional(self, column: str | None) -> str:
        """The text of a column that may be empty."""
        return self._text(column).strip() if column else ""

    def _metadata(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, column in self.roles.metadata.items():
            cell = self.row.cells.get(column)
            if key == "metadata" and isinstance(cell, dict):  # of a problem already
                values |= cell
            elif cell is not None:
                values[key] = self._value(column)
        return values

    def _text(self, column: str) -> str:
        cell = self.row.cells.get(column)
        if cell is None or isinstance(cell, str):
            return cell or ""
        if isinstance(cell, bool):
            return as_written(cell)
        if isinstance(cell, int | float | Decimal):
            return as_written(str(cell))
        return json.dumps(cell, ensure_ascii=False)

    def _value(self, column: str) -> Any:
        """A cell in JSON: a number if its column is numbers and it keeps all digits, else text."""
        cell = self.row.cells.get(column)
        if isinstance(cell, str) and (mark := self.marks.get(column)):
            number = number_of(pointed(cell.strip(), mark))
            return cell if number is None else number
        return in_json(cell)
