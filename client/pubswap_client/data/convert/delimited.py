"""CSV and other text with separators, in the encoding and with the separator that it turns out."""

import csv
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

from pubswap_client.data.convert.table import Cell, OpenTable, below_names, cell_of
from pubswap_protocol.command_line.formats import UTF16, file_format
from pubswap_protocol.errors import InvalidProblems, InvalidSettings
from pubswap_protocol.prompts import MAX_TEXT

_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_LEGACY = "cp1252"  # of desktops in Western Europe and America
_REMEDY = "Save it as UTF-8, or name its encoding, such as --encoding cp1250 (Central Europe)."


def delimited(path: Path, wanted: Collection[str], encoding: str | None) -> OpenTable:
    """The table in a text file; its separator parts the first row into the most `wanted` columns.

    Raises InvalidSettings if the encoding does not exist, and InvalidProblems, with the line, for
    what is not text or not a table.
    """
    if encoding is None:
        encoding = _encoding(path)
    elif encoding.lower() in ("utf-8", "utf8"):
        encoding = "utf-8-sig"  # with or without a byte-order mark
    try:
        names = {each: _names(path, encoding, each) for each in _SEPARATORS}
    except LookupError:
        raise InvalidSettings(
            f"There is no encoding {encoding!r}; others are utf-8, utf-16, cp1250 and cp1252."
        ) from None
    separator = max(names, key=lambda each: (len(names[each] & {*wanted}), len(names[each])))
    text = encoding.replace("utf-8-sig", "UTF-8").replace("utf-16", "UTF-16")
    form = f"text in {text}, columns parted by {_SEPARATORS[separator]}"
    return below_names(form, partial(_records, path, encoding, separator), path, unit="line")


def _encoding(path: Path) -> str:
    """UTF-8 or UTF-16 if the file is that, else that of older desktops.

    Raises InvalidProblems for a file with lines of both, some of which would be read wrongly.
    """
    if file_format(path) == UTF16:
        return "utf-16"
    utf_8 = other = 0  # the first line of each kind that is not ASCII
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                if not line.decode("utf-8-sig").isascii():
                    utf_8 = utf_8 or number
            except UnicodeDecodeError:
                other = other or number
            if utf_8 and other:
                raise InvalidProblems(
                    f"{path}: line {other} is not UTF-8, and line {utf_8} is. {_REMEDY}"
                )
    return _LEGACY if other else "utf-8-sig"


def _names(path: Path, encoding: str, separator: str) -> set[Cell]:
    """What is in the first row; nothing if quotes are wrong with this separator."""
    try:
        return next(
            (set(cells) for _, cells in _records(path, encoding, separator) if cells), set()
        )
    except InvalidProblems:
        return set()


def _records(path: Path, encoding: str, separator: str) -> Iterator[tuple[int, list[Cell]]]:
    """Rows of cells with the numbers of the lines where they begin."""
    csv.field_size_limit(MAX_TEXT)
    begin = 1
    with path.open(encoding=encoding, newline="") as file:
        reader = csv.reader(file, delimiter=separator, strict=True)
        try:
            for cells in reader:
                yield begin, [cell_of(cell) for cell in cells]
                begin = reader.line_num + 1
        except csv.Error as error:
            raise InvalidProblems(
                f"{path}: the row that begins in line {begin} cannot be read: {error}. A quote "
                '(") at the beginning of a cell encloses it, and inside it each one is written '
                'twice (""). Correct it there, or export the table again.'
            ) from None
        except UnicodeError:
            raise InvalidProblems(
                f"{path}: a line soon after line {reader.line_num} is not {encoding}. {_REMEDY}"
            ) from None
