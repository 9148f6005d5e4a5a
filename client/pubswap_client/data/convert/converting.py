"""Rows of a table to problems, and a record of those that were left out."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from typing import Any

from pubswap_client.data.convert.numbers import (
    ColumnSurvey,
    Mark,
    decimal_marks,
    number_of,
    pointed,
)
from pubswap_client.data.convert.roles import CellText, Roles
from pubswap_client.data.convert.table import Cell, CellFault, OpenTable, Row
from pubswap_client.data.examples import Unusable
from pubswap_client.data.golds import text_fault
from pubswap_protocol.errors import InvalidProblems, InvalidSettings
from pubswap_protocol.problems import Problem, as_written, parse_problem
from pubswap_protocol.verifiers import verifier_of
from pubswap_protocol.verifiers.verifier import VERIFIERS

_SHOWN = 2


@cache
def parameters() -> Mapping[str, tuple[str, str | None]]:
    """What a problem's metadata may set: the verifier, and the JSON type."""
    return {
        name: (cls.name, cls.model_json_schema()["properties"][name].get("type"))
        for cls in VERIFIERS
        for name in sorted(cls.by_problem)
    }


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
    remarks: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    first: list[Problem] = field(default_factory=list)
    written: int = 0

    def __post_init__(self) -> None:
        self._ids: set[int] = set()
        self._answers: dict[int, int] = {}  # of prompts; hashes, because tables may be large

    def __iter__(self) -> Iterator[Problem]:
        for row in self.table.rows():
            try:
                if row.fault:
                    raise Unusable(row.fault)
                reading = RowReading(row, self.roles, self.survey.marks)
                problem = _problem(reading.fields(self.table.unit))
                self._compare(problem, reading.remarks)
            except Unusable as error:
                self.left_out[error.reason].append(row.number)
                continue
            for remark in reading.remarks:
                self.remarks[remark].append(row.number)
            if self.written < _SHOWN:
                self.first.append(problem)
            self.written += 1
            yield problem

    def _compare(self, problem: Problem, remarks: list[str]) -> None:
        """Compare a problem with those before it."""
        if (id_ := hash(problem.id)) in self._ids:
            raise Unusable("id: it occurs before")
        self._ids.add(id_)
        answer = hash(problem.answer.strip())
        prompt = hash(" ".join(problem.text.split()))
        if self._answers.setdefault(prompt, answer) != answer:
            remarks.append("a prompt that occurs before, with another answer")


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
    """A row's cells as the fields of a problem, and remarks on what is odd. Raises Unusable."""

    row: Row
    roles: Roles
    marks: Mapping[str, Mark]
    remarks: list[str] = field(default_factory=list)

    def fields(self, unit: str) -> dict[str, Any]:
        """The fields that are not empty; `unit` is a part of the id if there is none."""
        roles = self.roles
        fields = {
            "id": self._optional(roles.id) or f"{unit}-{self.row.number}",
            "prompt": self._prompt(),
            "answer": self._answer(),
            "topic": self._optional(roles.topic),
            "verifier": self._optional(roles.verifier) or roles.constant_verifier,
            "metadata": self._metadata(),
        }
        return {key: value for key, value in fields.items() if value}

    def _prompt(self) -> Any:
        part, cells = self.roles.prompt, self.row.cells
        if not part.is_template and isinstance(cells.get(part.source), list):
            return self._value(part.source)  # messages
        empty = [column for column in part.columns if cells.get(column) is None]
        if len(empty) == len(part.columns):
            are = "is" if len(empty) == 1 else "are"
            raise Unusable(f"prompt: {' and '.join(empty)} {are} empty")
        self.remarks += [f"a prompt in which {column} is empty" for column in empty]
        return self._text_of(part).strip()

    def _answer(self) -> str:
        part, answers = self.roles.answer, self.roles.answers
        for column in self.roles.answer_columns:
            if self.row.cells.get(column) is None:
                raise Unusable(f"answer: {column} is empty")
        if answers:
            values = {key: self._value(column) for key, column in answers.items()}
            return json.dumps(values, ensure_ascii=False)
        text = self._text_of(part).strip()
        decimal_comma = not part.is_template and self.marks.get(part.source) == ","
        return pointed(text, ",") if decimal_comma else text

    def _optional(self, column: str | None) -> str | None:
        """The text of a column that may be empty."""
        if column is None:
            return None
        if self.row.cells.get(column) is None:
            self.remarks.append(f"{column} is empty")
        return self._text(column).strip()

    def _metadata(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, column in (self.roles.metadata or {}).items():
            cell = self.row.cells.get(column)
            if key == "metadata" and isinstance(cell, dict):  # of a problem already
                values |= self._value(column)
            elif cell is not None:
                values[key] = self._parameter(key, column)
        return values

    def _parameter(self, key: str, column: str) -> Any:
        """A cell as metadata: of the type of the verifier's parameter if it is one."""
        _, kind = parameters().get(key, (None, None))
        cell = self.row.cells[column]
        if kind == "string":
            return self._text(column)
        if kind in ("array", "boolean") and isinstance(cell, str):
            try:
                return json.loads(cell)
            except (ValueError, RecursionError):
                return cell
        return self._value(column)

    def _text_of(self, part: CellText) -> str:
        return part.filled(self._text) if part.is_template else self._text(part.source)

    def _text(self, column: str) -> str:
        cell = self.row.cells.get(column)
        if cell is None or isinstance(cell, str):
            return cell or ""
        if isinstance(cell, bool):
            return as_written(cell)
        if isinstance(cell, int | float | Decimal):
            return as_written(str(cell))
        return json.dumps(self._value(column), ensure_ascii=False)

    def _value(self, column: str) -> Any:
        """A cell in JSON: a number if its column is numbers and it keeps all digits, else text."""
        cell = self.row.cells.get(column)
        if isinstance(cell, str) and (mark := self.marks.get(column)):
            number = number_of(pointed(cell.strip(), mark))
            return cell if number is None else number
        return _in_json(cell, column)


def _in_json(cell: Cell, column: str) -> Any:
    """A cell, or a value in it, in JSON; raises Unusable, naming the column."""
    if isinstance(cell, CellFault):
        raise Unusable(f"{column}: {cell.reason}")
    if isinstance(cell, Decimal):
        exact = cell.is_finite() and Decimal(repr(float(cell))) == cell
        return float(cell) if exact else str(cell)
    if isinstance(cell, float) and not math.isfinite(cell):
        return str(cell)
    if isinstance(cell, list):
        return [_in_json(item, column) for item in cell]
    if isinstance(cell, dict):
        return {key: _in_json(item, column) for key, item in cell.items()}
    return cell
