"""Sheets of Excel workbooks, row by row."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile
from zlib import error as ZlibError

from pubswap_client.data.convert.table import BadCell, Cell, Grid, OpenTable
from pubswap_protocol.command_line.amounts import first_few
from pubswap_protocol.errors import InvalidProblems, InvalidSettings

if TYPE_CHECKING:
    from openpyxl import Workbook

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
    grids = {name: _grid(path, name) for name in ([sheet] if sheet is not None else names)}
    headers = {
        name: header for name, grid in grids.items() if (header := grid.header(wanted)) is not None
    }
    if len(headers) > 1:
        raise InvalidSettings(
            f"{path} has these columns on the sheets {_quoted(headers)}: name one with --sheet."
        )
    if not headers:
        refusals = [grid.refusal(wanted, path) for grid in grids.values()]
        where = f" Its sheets are {_quoted(names)}." if len(names) > 1 else ""
        raise InvalidSettings((refusals or [f"{path} has no sheet with cells."])[0] + where)
    [(name, header)] = headers.items()
    return grids[name].table(header, path)


def _quoted(names: Any) -> str:
    return first_few(map(repr, names), most=20)


def _grid(path: Path, sheet: str) -> Grid:
    return Grid(f"Excel workbook, sheet {sheet!r}", lambda: _lines(path, sheet), hint=_HINT)


@contextmanager
def _opened(path: Path) -> Iterator["Workbook"]:
    from openpyxl import load_workbook
    from openpyxl.utils.exceptions import InvalidFileException

    # Of styles and lists that it does not know.
    warnings.filterwarnings("ignore", category=UserWarning, module="openpyxl")
    try:
        book = load_workbook(path, read_only=True, data_only=True)
        try:
            yield book
        finally:
            book.close()
    except (InvalidFileException, *_DAMAGED) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InvalidProblems(
            f"{path} cannot be read as an Excel workbook ({reason}). Save it again."
        ) from None


def _lines(path: Path, sheet: str) -> Iterator[tuple[int, list[Cell]]]:
    with _opened(path) as book:
        rows = book[sheet]
        rows.reset_dimensions()  # some programs write wrong ones
        for number, cells in enumerate(rows.iter_rows(), start=1):
            yield number, [_cell(cell) for cell in cells]


def _cell(cell: Any) -> Cell:
    value = cell.value
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if cell.data_type == "e":
        return BadCell(f"{value}, an error of Excel")
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        if re.fullmatch("00+", cell.number_format):  # shown with zeros in front, as postcodes are
            return f"{value:0{len(cell.number_format)}.0f}"
        return value if isinstance(value, int) else _plain(value)
    if isinstance(value, datetime):
        whole = value.time() == time(0)
        return str(value.date()) if whole else value.isoformat(" ", "seconds")
    if isinstance(value, date | time | timedelta):
        return str(value)
    return str(value)


def _plain(value: float) -> int | float:
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
