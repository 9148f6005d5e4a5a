"""Rows of a table to problems, and a record of those that were left out."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
from pubswap_client.data.convert.table import BadCell, BadRow, Cell, OpenTable, Row
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
        if isinstance(row, Row):
            for name, cell in row.cells.items():
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
        self._odd: list[str] = []  # remarks on the current row

    def __iter__(self) -> Iterator[Problem]:
        for row in self.table.rows():
            try:
                if isinstance(row, BadRow):
                    raise Unusable(row.reason)
                problem = self._problem(row)
                if self.written < _SHOWN:
                    self.first.append(problem)
                self.written += 1
                yield problem
            except Unusable as error:
                self.left_out[error.reason].append(row.number)

    def _problem(self, row: Row) -> Problem:
        where = f"{self.table.unit} {row.number}"
        self._odd.clear()
        try:
            problem = parse_problem(json.dumps(self._fields(row)), where)
            if problem.verifier:
                verifier_of(problem.verifier)
            # The run may give the verifier parameters, so its own check is the doctor's.
            fault = text_fault(problem.model_copy(update={"verifier": None}), None)
        except (InvalidProblems, InvalidSettings) as error:
            raise Unusable(error.detail.removeprefix(f"{where}: ")) from None
        if fault:
            raise Unusable(f"answer: {fault}")
        self._compare(problem)
        for remark in self._odd:
            self.remarks[remark].append(row.number)
        return problem

    def _compare(self, problem: Problem) -> None:
        """Compare a problem with those before it."""
        if (id_ := hash(problem.id)) in self._ids:
            raise Unusable("id: it occurs before")
        self._ids.add(id_)
        answer = hash(problem.answer.strip())
        prompt = hash(" ".join(problem.text.split()))
        if self._answers.setdefault(prompt, answer) != answer:
            self._odd.append("a prompt that occurs before, with another answer")

    def _fields(self, row: Row) -> dict[str, Any]:
        """The fields of a row's problem; raises Unusable if one is missing."""
        roles = self.roles
        fields = {
            "id": self._optional(row, roles.id) or f"{self.table.unit}-{row.number}",
            "prompt": self._prompt(row),
            "answer": self._answer(row),
            "topic": self._optional(row, roles.topic),
            "verifier": self._optional(row, roles.verifier) or roles.constant_verifier,
            "metadata": self._metadata(row),
        }
        return {key: value for key, value in fields.items() if value}

    def _prompt(self, row: Row) -> Any:
        part = self.roles.prompt
        cells = [row.cells.get(column) for column in part.columns]
        if not part.is_template and isinstance(cells[0], list):
            return self._value(part.source, cells[0])  # messages
        if all(cell is None for cell in cells):
            raise Unusable(f"prompt: {' and '.join(part.columns)} {_are(part.columns)} empty")
        for column, cell in zip(part.columns, cells, strict=True):
            if cell is None:
                self._odd.append(f"a prompt in which {column} is empty")
        return self._filled(part, row).strip()

    def _filled(self, part: CellText, row: Row) -> str:
        def text_of(column: str) -> str:
            cell = row.cells.get(column)
            return "" if cell is None else self._text(column, cell)

        return part.filled(text_of)

    def _answer(self, row: Row) -> str:
        part, roles = self.roles.answer, self.roles
        columns = list(roles.answers.values()) if part is None else part.columns
        for column in columns:
            if row.cells.get(column) is None:
                raise Unusable(f"answer: {column} is empty")
        if part is None:
            values = {
                key: self._value(column, row.cells[column]) for key, column in roles.answers.items()
            }
            return json.dumps(values, ensure_ascii=False)
        if part.is_template:
            return self._filled(part, row).strip()
        text = self._text(part.source, row.cells[part.source]).strip()
        mark = self.survey.marks.get(part.source)
        return pointed(text, mark) if mark == "," else text

    def _optional(self, row: Row, column: str | None) -> str | None:
        """The text of a column that may be empty."""
        if column is None:
            return None
        if (cell := row.cells.get(column)) is None:
            self._odd.append(f"{column} is empty")
            return None
        return self._text(column, cell).strip()

    def _metadata(self, row: Row) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, column in self.roles.metadata.items():
            if (cell := row.cells.get(column)) is None:
                continue
            if key == "metadata" and isinstance(cell, dict):  # of a problem already
                values |= self._value(column, cell)
            else:
                values[key] = self._parameter(key, column, cell)
        return values

    def _parameter(self, key: str, column: str, cell: Cell) -> Any:
        """A cell as metadata: of the type of the verifier's parameter if it is one."""
        _, kind = parameters().get(key, (None, None))
        if kind == "string":
            return self._text(column, cell)
        if kind in ("array", "boolean") and isinstance(cell, str):
            try:
                return json.loads(cell)
            except (ValueError, RecursionError):
                return cell
        return self._value(column, cell)

    def _text(self, column: str, cell: Cell) -> str:
        if isinstance(cell, BadCell):
            raise Unusable(f"{column}: {cell.reason}")
        if isinstance(cell, str):
            return cell
        if isinstance(cell, bool):
            return as_written(cell)
        if isinstance(cell, list | dict):
            return json.dumps(self._value(column, cell), ensure_ascii=False)
        return as_written(str(cell))

    def _value(self, column: str, cell: Cell) -> Any:
        """A cell in JSON: a number if its column is numbers and it keeps all digits, else text."""
        if isinstance(cell, BadCell):
            raise Unusable(f"{column}: {cell.reason}")
        if isinstance(cell, str) and (mark := self.survey.marks.get(column)):
            number = number_of(pointed(cell.strip(), mark))
            return cell if number is None else number
        if isinstance(cell, Decimal):
            exact = cell.is_finite() and Decimal(repr(float(cell))) == cell
            return float(cell) if exact else str(cell)
        if isinstance(cell, float) and not math.isfinite(cell):
            return str(cell)
        if isinstance(cell, list):
            return [self._value(column, item) for item in cell]
        if isinstance(cell, dict):
            return {key: self._value(column, item) for key, item in cell.items()}
        return cell


def _are(things: Sequence[object]) -> str:
    return "is" if len(things) == 1 else "are"
