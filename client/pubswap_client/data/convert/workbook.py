"""Sheets of Excel workbooks, row by row."""

import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile
from zlib import error as ZlibError

from pubswap_client.data.convert.table import Cell, CellFault, Grid, OpenTable
from pubswap_client.data.examples import reason_of
from pubswap_protocol.command_line.amounts import first_few
from pubswap_protocol.errors import InvalidProblems, InvalidSettings

if TYPE_CHECKING:
    from openpyxl import Workbook

_AT_ONCE = 1000  # rows in memory
_DIGITS = 15  # as Excel keeps them: 0.1 + 0.2 is 0.3 there
# What openpyxl raises for a damaged file, besides its own.
_DAMAGED = (BadZipFile, ZlibError, KeyError, ValueError, TypeError, SyntaxError, EOFError)
_HINT = (
    "Of merged cells only the first has the value: unmerge and fill them. A formula has one after "
    "Excel or LibreOffice has saved the file."
)


def workbook(path: Path, wanted: set[str], sheet: str | None) -> OpenTable:
    """The table of a workbook: on the given sheet, or the only one with the `wanted` columns.

    Formulas count by their last value; dates become text such as 2024-05-31.

    Raises InvalidSettings if no sheet, or more than one, has the columns, and InvalidProblems if
    the file is damaged.
    """
    with _opened(path) as book:
        names = [each.title for each in book.worksheets]
    if sheet is not None and sheet not in names:
        raise InvalidSettings(f"{path} has no sheet {sheet!r}; it has {_quoted(names)}.")
    grids = {
        name: Grid(f"Excel workbook, sheet {name!r}", partial(_lines, path, name), hint=_HINT)
        for name in (names if sheet is None else [sheet])
    }
    found = {name: row for name, grid in grids.items() if (row := grid.header(wanted))}
    if len(found) > 1:
        raise InvalidSettings(
            f"{path} has these columns on the sheets {_quoted(found)}: name one with --sheet."
        )
    if not found:
        refusals = [grid.refusal(wanted, path) for grid in grids.values()]
        where = f" Its sheets are {_quoted(names)}." if len(names) > 1 else ""
        raise InvalidSettings((refusals or [f"{path} has no sheet with cells."])[0] + where)
    [(name, header)] = found.items()
    return grids[name].table(header, path)


def _quoted(names: Iterable[str]) -> str:
    return first_few(map(repr, names), most=20)


@contextmanager
def _opened(path: Path) -> Iterator["Workbook"]:
    from openpyxl import load_workbook
    from openpyxl.utils.exceptions import InvalidFileException

    try:
        with _calm():
            book = load_workbook(path, read_only=True, data_only=True)
        try:
            yield book
        finally:
            book.close()
    except (InvalidFileException, *_DAMAGED) as error:
        raise InvalidProblems(
            f"{path} cannot be read as an Excel workbook ({reason_of(error)}). Save it again."
        ) from None


@contextmanager
def _calm() -> Iterator[None]:
    """Without openpyxl's warnings of styles and lists that it does not know.

    No generator may yield in here, because its caller would not be warned of anything either.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="openpyxl")
        yield


def _lines(path: Path, sheet: str) -> Iterator[tuple[int, list[Cell]]]:
    with _opened(path) as book:
        book[sheet].reset_dimensions()  # some programs write wrong ones
        rows = enumerate(book[sheet].iter_rows(), start=1)
        while True:
            with _calm():
                some = [(number, [*map(_cell, cells)]) for number, cells in islice(rows, _AT_ONCE)]
            if not some:
                return
            yield from some


def _cell(cell: Any) -> Cell:
    value = cell.value
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if cell.data_type == "e":
        return CellFault(f"{value}, an error of Excel")
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        if re.fullmatch("00+", cell.number_format):  # shown with zeros in front, as postcodes are
            return f"{value:0{len(cell.number_format)}.0f}"
        return value if isinstance(value, int) else _plain(value)
    if isinstance(value, datetime):
        return str(value.date()) if value.time() == time(0) else value.isoformat(" ", "seconds")
    return str(value)


def _plain(value: float) -> int | float:
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
