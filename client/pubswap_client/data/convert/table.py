"""A table of another program: its columns, and its rows one after another."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from pubswap_protocol.command_line.amounts import first_few
from pubswap_protocol.errors import InvalidProblems, InvalidSettings

TOP = 20  # rows among which the one with the columns' names is
_MAX_NAMES = 30


@dataclass(frozen=True)
class CellFault:
    """The content of a cell without a value, such as an error of Excel."""

    reason: str


Cell = Any
"""None if it is empty, else text, bool, int, float, Decimal, list, dict or a CellFault."""


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
    notes: tuple[str, ...] = ()
    hint: str = ""  # why cells may be empty that do not look it

    def checked(self, wanted: set[str], path: Path) -> "OpenTable":
        """The same; raises InvalidSettings if it lacks a column, InvalidProblems if one occurs
        twice."""
        if not wanted <= set(self.columns):
            raise InvalidSettings(_missing(wanted, self.columns, path))
        _check_distinct(self.columns, str(path))
        return self


Header = tuple[int, list[str | None]]
"""A row's number, and the names of columns in it."""


@dataclass(frozen=True)
class Grid:
    """Rows of cells, one of the first of which has the columns' names."""

    format: str
    lines: Callable[[], Iterable[tuple[int, Sequence[Cell]]]]
    unit: str = "row"
    hint: str = ""
    whole: bool = False  # whether each row has all of its cells, empty ones too

    def top(self) -> Iterator[Header]:
        """The first rows, read one by one, because one of them may be broken."""
        return ((number, [*map(_name, cells)]) for number, cells in islice(self.lines(), TOP))

    def header(self, wanted: set[str]) -> Header | None:
        """The first row that names these columns; None if there is none at the top."""
        return next((row for row in self.top() if wanted <= set(row[1])), None)

    def table(self, header: Header, path: Path) -> OpenTable:
        """The table below a header; raises InvalidProblems if this names a column twice."""
        number, names = header
        _check_distinct(names, f"{path}, {self.unit} {number}")
        names = names[: max(place for place, name in enumerate(names, start=1) if name)]
        notes = [f"The columns' names are in {self.unit} {number}."] if number > 1 else []
        if nameless := [place for place, name in enumerate(names, start=1) if not name]:
            notes.append(f"Without a name, and left out: column {first_few(nameless, _MAX_NAMES)}.")
        columns = tuple(name for name in names if name)
        table = OpenTable(self.format, columns, lambda: self._rows(number, names), self.unit)
        return replace(table, notes=tuple(notes), hint=self.hint)

    def refusal(self, wanted: set[str], path: Path) -> str:
        """That no row names these columns, and which the row that is nearest to it has."""
        rows = [named for _, names in self.top() if (named := [name for name in names if name])]
        if not rows:
            return f"{path} has no rows."
        return _missing(wanted, max(rows, key=lambda names: len(wanted & set(names))), path)

    def _rows(self, header: int, names: Sequence[str | None]) -> Iterator[Row]:
        empty: list[int] = []
        width = len(names)
        for number, cells in self.lines():
            if number <= header:
                continue
            if all(cell is None for cell in cells):
                empty.append(number)  # at the end they are no rows
                continue
            yield from (Row(place, {}, "an empty row") for place in empty)
            empty.clear()
            fault = ""
            if (self.whole and len(cells) < width) or any(c is not None for c in cells[width:]):
                fault = f"the row has {len(cells)} cells, and the columns are {width}"
            elif [*map(_name, cells[:width])] == names:
                fault = "the columns' names again"
            pairs = zip(names, cells, strict=False)
            yield Row(number, {name: cell for name, cell in pairs if name}, fault)


def _missing(wanted: set[str], names: Sequence[str], path: Path) -> str:
    """That a file lacks columns, and which ones it has."""
    lacking = first_few(sorted(map(repr, wanted - set(names))))
    return (
        f"{path} has no column {lacking}. Its columns are "
        f"{first_few(map(repr, names), _MAX_NAMES)}. Name them as --prompt, --answer and so on."
    )


def _check_distinct(names: Sequence[str | None], where: str) -> None:
    for name, count in Counter(filter(None, names)).most_common(1):
        if count > 1:
            places = [place for place, other in enumerate(names, start=1) if other == name]
            raise InvalidProblems(
                f"{where}: the column {name!r} occurs {count} times, as column "
                f"{first_few(places)}. Give each its own name, or remove all but one."
            )


def _name(cell: Cell) -> str | None:
    return None if cell is None or isinstance(cell, CellFault) else " ".join(str(cell).split())
