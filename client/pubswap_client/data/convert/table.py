"""A table of another program: its columns, and its rows one after another."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pubswap_protocol.command_line.amounts import first_few
from pubswap_protocol.errors import InvalidProblems, InvalidSettings

TOP = 20  # rows among which the one with the columns' names is
_MAX_NAMES = 30


@dataclass(frozen=True)
class BadCell:
    """A cell without a value, such as an error of Excel."""

    reason: str


Cell = Any
"""None if it is empty, else text, bool, int, float, Decimal, list, dict or a BadCell."""


@dataclass(frozen=True)
class Row:
    """A row by its columns, and its number in the file."""

    number: int
    cells: Mapping[str, Cell]


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used, and its number in the file."""

    number: int
    reason: str


@dataclass(frozen=True)
class OpenTable:
    """A file that was opened. `rows` reads it from the beginning, each time that it is called."""

    format: str
    columns: tuple[str, ...]
    rows: Callable[[], Iterator[Row | BadRow]]
    unit: str = "row"  # what is counted: rows, or lines of the file
    typed: bool = False  # whether text that looks like a number was meant as text
    notes: tuple[str, ...] = ()
    hint: str = ""  # why cells may be empty that do not look it


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

    def header(self, wanted: set[str]) -> Header | None:
        """The first row that names these columns; None if there is none at the top."""
        top = ((number, [*map(_name, cells)]) for number, cells in islice(self.lines(), TOP))
        return next((each for each in top if wanted <= set(each[1])), None)

    def table(self, header: Header, path: Path) -> OpenTable:
        """The table below a header; raises InvalidProblems if this names a column twice."""
        number, names = header
        columns = tuple(name for name in names if name)
        where = f"{path}, {self.unit} {number}"
        _check_distinct(columns, names, where)
        notes = [f"The columns' names are in {self.unit} {number}."] if number > 1 else []
        width = max(place for place, name in enumerate(names, start=1) if name)
        if nameless := [place for place, name in enumerate(names[:width], start=1) if not name]:
            notes.append(f"Without a name, and left out: column {first_few(nameless, _MAX_NAMES)}.")
        return OpenTable(
            self.format,
            columns,
            lambda: self._rows(number, names[:width]),
            self.unit,
            notes=tuple(notes),
            hint=self.hint,
        )

    def refusal(self, wanted: set[str], path: Path) -> str:
        """That no row names these columns, and which the row that is nearest to it has."""
        top = (
            [name for name in map(_name, cells) if name] for _, cells in islice(self.lines(), TOP)
        )
        if not (rows := [names for names in top if names]):
            return f"{path} has no rows."
        return missing(wanted, max(rows, key=lambda names: len(wanted & set(names))), path)

    def _rows(self, header: int, names: Sequence[str | None]) -> Iterator[Row | BadRow]:
        empty: list[int] = []
        width = len(names)
        for number, cells in self.lines():
            if number <= header:
                continue
            if all(cell is None for cell in cells):
                empty.append(number)
                continue
            yield from (BadRow(place, "an empty row") for place in empty)
            empty.clear()
            short = self.whole and len(cells) < width
            if short or any(cell is not None for cell in cells[width:]):
                reason = f"the row has {len(cells)} cells, and the columns are {width}"
                yield BadRow(number, reason)
            elif all(map(_is_named, cells, names)) and len(cells) >= width:
                yield BadRow(number, "the columns' names again")
            else:
                pairs = zip(names, cells, strict=False)
                yield Row(number, {name: cell for name, cell in pairs if name})


def missing(wanted: set[str], names: Iterable[str], path: Path) -> str:
    """That a file lacks columns, and which ones it has."""
    known = list(names)
    lacking = first_few(sorted(map(repr, wanted - set(known))))
    return (
        f"{path} has no column {lacking}. Its columns are "
        f"{first_few(map(repr, known), _MAX_NAMES)}. Name them as --prompt, --answer and so on."
    )


def check_columns(wanted: set[str], columns: Sequence[str], path: Path) -> None:
    """Raises InvalidSettings if a column is missing, InvalidProblems if one occurs twice."""
    if not wanted <= set(columns):
        raise InvalidSettings(missing(wanted, columns, path))
    _check_distinct(columns, columns, str(path))


def _check_distinct(columns: Sequence[str], places: Sequence[str | None], where: str) -> None:
    for name, count in Counter(columns).most_common(1):
        if count > 1:
            found = [place for place, other in enumerate(places, start=1) if other == name]
            raise InvalidProblems(
                f"{where}: the column {name!r} occurs {count} times, as column "
                f"{first_few(found)}. Give each its own name, or remove all but one."
            )


def _is_named(cell: Cell, name: str | None) -> bool:
    return _name(cell) == name


def _name(cell: Cell) -> str | None:
    return None if cell is None or isinstance(cell, BadCell) else " ".join(str(cell).split())
