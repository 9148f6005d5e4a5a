"""A table of another program: its columns, and its rows one after another."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

from pubswap_protocol.command_line.amounts import first_few
from pubswap_protocol.errors import InvalidProblems, InvalidSettings

_MAX_NAMES = 30

Cell = Any
"""None if it is empty, else text, bool, int, float, Decimal, list or dict."""


@dataclass(frozen=True)
class Row:
    """A row's number in the file, and its cells by column, or why it cannot be used."""

    number: int
    cells: Mapping[str, Cell]
    fault: str = ""


@dataclass(frozen=True)
class OpenTable:
    """A file that was opened. `rows` reads it from the beginning, each time that it is called."""

    format: str
    columns: tuple[str, ...]
    rows: Callable[[], Iterator[Row]]
    unit: str = "row"  # what is counted: rows, or lines of the file
    typed: bool = False  # whether text that looks like a number was meant as text

    def with_parts(self, wanted: Collection[str]) -> "OpenTable":
        """The table with a column for each wanted part of a nested value, as `answers.text.0`."""
        others = sorted(set(wanted) - set(self.columns)) if self.typed else []
        parts = [name for name in others if name.split(".")[0] in self.columns]

        def rows() -> Iterator[Row]:
            for row in self.rows():
                found = {name: _part(row.cells, name) for name in parts}
                yield replace(row, cells={**row.cells, **found})

        return replace(self, columns=(*self.columns, *parts), rows=rows) if parts else self

    def require(self, wanted: Collection[str], path: Path) -> None:
        """Raises InvalidSettings if it lacks a column, InvalidProblems if one is twice, or none."""
        if not self.columns:
            raise InvalidProblems(f"{path}, read as {self.format}, has no row with named columns.")
        if lacking := sorted(set(wanted) - set(self.columns)):
            raise InvalidSettings(
                f"{path}, read as {self.format}, has no column {first_few(map(repr, lacking))}. "
                f"Its columns are {first_few(map(repr, self.columns), _MAX_NAMES)}."
            )
        for name, count in Counter(self.columns).most_common(1):
            if count > 1:
                raise InvalidProblems(
                    f"{path}: the column {name!r} occurs {count} times. Give each its own name, or "
                    "remove all but one."
                )


def _part(cells: Mapping[str, Cell], name: str) -> Cell:
    """What a row has at the keys and places (from 0) behind a column's name; None if nothing."""
    column, *keys = name.split(".")
    cell = cells.get(column)
    for key in keys:
        if isinstance(cell, dict):
            cell = cell.get(key)
        elif isinstance(cell, list):
            cell = {str(place): each for place, each in enumerate(cell)}.get(key)
        else:
            return None
    return cell_of(cell)


Lines = Callable[[], Iterable[tuple[int, Sequence[Cell]]]]
"""Rows of cells with their numbers, from the first one at each call."""


def below_names(form: str, lines: Lines, path: Path, unit: str = "row") -> OpenTable:
    """The table whose first row has the columns' names; raises InvalidProblems without one.

    A column without a name is left out, and a row without any cell is none.
    """
    filled = ((number, cells) for number, cells in lines() if any(c is not None for c in cells))
    header, first = next(filled, (0, ()))
    if not header:
        raise InvalidProblems(f"{path} has no rows.")
    names = ["" if cell is None else " ".join(str(cell).split()) for cell in first]

    def rows() -> Iterator[Row]:
        for number, cells in lines():
            if number <= header or all(cell is None for cell in cells):
                continue
            fault = ""
            if any(cell is not None for cell in cells[len(names) :]):
                fault = f"the row has {len(cells)} cells, and the columns are {len(names)}"
            pairs = zip(names, cells, strict=False)
            yield Row(number, {name: cell for name, cell in pairs if name}, fault)

    return OpenTable(form, tuple(filter(None, names)), rows, unit)


def cell_of(value: Any) -> Cell:
    """A value of another program; blank text and NaN are empty."""
    if value is None or value != value or (isinstance(value, str) and not value.strip()):
        return None
    return value if isinstance(value, Decimal) else in_json(value)


def in_json(value: Any) -> Any:
    """A value in JSON's terms: dates, which it lacks, are text, and bytes nothing."""
    if value is None or isinstance(value, bytes):
        return None
    if isinstance(value, str | bool | int):
        return value
    if isinstance(value, Decimal):
        exact = value.is_finite() and Decimal(repr(float(value))) == value
        return float(value) if exact else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return [in_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): in_json(item) for key, item in value.items()}
    if isinstance(value, datetime) and value.time() == time(0):
        return str(value.date())
    return str(value)
