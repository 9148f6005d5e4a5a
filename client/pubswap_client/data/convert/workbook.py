"""Sheets of Excel workbooks, row by row."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile
from zlib import error as ZlibError

from pubswap_client.data.convert.table import Cell, OpenTable, below_names, cell_of
from pubswap_client.data.examples import reason_of
from pubswap_protocol.command_line.amounts import first_few
from pubswap_protocol.errors import InvalidProblems, InvalidSettings

if TYPE_CHECKING:
    from openpyxl import Workbook

_DIGITS = 15  # as Excel keeps them: 0.1 + 0.2 is 0.3 there
# What openpyxl raises for a damaged file, besides its own.
_DAMAGED = (BadZipFile, ZlibError, KeyError, ValueError, TypeError, SyntaxError, EOFError)


def workbook(path: Path, sheet: str | None) -> OpenTable:
    """The table on a workbook's sheet, by default the first one.

    Formulas count by their last value; an error, as #N/A, is an empty cell.

    Raises InvalidSettings if there is no such sheet, and InvalidProblems if the file is damaged.
    """
    with _opened(path) as book:
        names = [each.title for each in book.worksheets]
    listed = first_few(map(repr, names), most=20)
    title = sheet or next(iter(names), "")
    if title not in names:
        raise InvalidSettings(f"{path} has no sheet {title!r}; it has {listed}.")
    others = f" of {listed}" if len(names) > 1 else ""
    return below_names(f"Excel, sheet {title!r}{others}", partial(_lines, path, title), path)


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
        raise InvalidProblems(
            f"{path} cannot be read as an Excel workbook ({reason_of(error)}). Save it again."
        ) from None


def _lines(path: Path, sheet: str) -> Iterator[tuple[int, list[Cell]]]:
    with _opened(path) as book:
        book[sheet].reset_dimensions()  # some programs write wrong ones
        for number, cells in enumerate(book[sheet].iter_rows(), start=1):
            yield number, [_cell(cell) for cell in cells]


def _cell(cell: Any) -> Cell:
    value = cell.value
    if isinstance(value, float):
        rounded = float(f"{value:.{_DIGITS}g}")
        return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
    return None if cell.data_type == "e" else cell_of(value)
