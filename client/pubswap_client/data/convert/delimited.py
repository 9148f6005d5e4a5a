"""CSV and other text with separators, in the encoding and with the separator that it turns out."""

import codecs
import csv
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pubswap_client.data.convert.table import Cell, Grid, OpenTable
from pubswap_protocol.command_line.formats import UTF16, file_format
from pubswap_protocol.errors import InvalidProblems, InvalidSettings
from pubswap_protocol.problems import MAX_LINE
from pubswap_protocol.prompts import MAX_TEXT

_SEPARATORS = {";": "semicolons", ",": "commas", "\t": "tabs", "|": "bars"}
_LEGACY = "cp1252"  # of desktops in Western Europe and America
_ENCODING = "Save it as UTF-8, or name its encoding, such as --encoding cp1250 (Central Europe)."


def delimited(path: Path, wanted: set[str], encoding: str | None) -> OpenTable:
    """The table in a text file; the separator is the one that parts the `wanted` columns.

    Raises InvalidSettings if none does, or if the encoding does not exist, and InvalidProblems,
    with the line, for what is not text or not a table.
    """
    encoding = _known(encoding) if encoding else _encoding(path)
    text = encoding.replace("utf-8-sig", "UTF-8").replace("utf-16", "UTF-16")
    readable, faults = list[Grid](), list[InvalidProblems]()
    for separator, name in _SEPARATORS.items():
        form = f"text in {text}, columns parted by {name}"
        grid = Grid(form, partial(_records, path, encoding, separator), unit="line", whole=True)
        try:
            header = grid.header(wanted)
        except InvalidProblems as error:  # with another separator, quotes may be right
            faults.append(error)
            continue
        if header is not None:
            return grid.table(header, path)
        readable.append(grid)
    if not readable:
        raise faults[0]
    widest = max(readable, key=lambda grid: max((len(row) for _, row in grid.top()), default=0))
    raise InvalidSettings(widest.refusal(wanted, path))


def _known(encoding: str) -> str:
    try:
        name = codecs.lookup(encoding).name
        "".encode(name)  # some codecs are not for text
    except (LookupError, ValueError):
        raise InvalidSettings(
            f"There is no encoding {encoding!r}; others are utf-8, utf-16, cp1250 and cp1252."
        ) from None
    return {"utf-8": "utf-8-sig"}.get(name, name)


def _encoding(path: Path) -> str:
    """UTF-8 or UTF-16 if the file is that, else that of older desktops.

    Raises InvalidProblems for a file that is UTF-8 up to some line.
    """
    if file_format(path) == UTF16:
        return "utf-16"
    foreign, most = False, 4 * MAX_LINE  # bytes; a longer line is refused when it is read
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(most), b""), start=1):
            if len(line) == most:
                break
            try:
                foreign |= not line.decode().removeprefix("\ufeff").isascii()
            except UnicodeDecodeError as error:
                if not foreign and line[: error.start].removeprefix(codecs.BOM_UTF8).isascii():
                    return _LEGACY
                raise InvalidProblems(
                    f"{path}: line {number} is not UTF-8, and lines before it are. {_ENCODING}"
                ) from None
    return "utf-8-sig"


def _records(path: Path, encoding: str, separator: str) -> Iterator[tuple[int, list[Cell]]]:
    """Rows of cells with the numbers of the lines where they begin."""
    csv.field_size_limit(MAX_TEXT)
    reader = csv.reader(_lines(path, encoding), delimiter=separator, strict=True)
    begin = 1
    try:
        for cells in reader:
            yield begin, [cell if cell.strip() else None for cell in cells]
            begin = reader.line_num + 1
    except csv.Error as error:
        raise InvalidProblems(_quoting(path, begin, reader.line_num, str(error))) from None


def _quoting(path: Path, begin: int, end: int, fault: str) -> str:
    """What is wrong with the quotes of a row, and how to correct it."""
    if "field larger" in fault:
        found = f"has a cell of more than {MAX_TEXT:,} characters; often a quote never ends"
    elif "unexpected end" in fault:
        found = "opens a quote that never ends"
    else:
        found = f"has a quote that ends within a cell, in line {end}"
    return (
        f'{path}: the row that begins in line {begin} {found}. A quote (") at the beginning of a '
        'cell encloses it, and inside it each one is written twice (""). Correct it there, or '
        "export the table again."
    )


def _lines(path: Path, encoding: str) -> Iterator[str]:
    number = 0
    with path.open(encoding=encoding, newline="") as file:
        try:
            while line := file.readline(MAX_LINE):
                number += 1
                if len(line) == MAX_LINE:
                    raise InvalidProblems(
                        f"{path}: line {number} has more than {MAX_LINE:,} characters: it is "
                        "not a table of text."
                    )
                yield line
        except UnicodeError:
            raise InvalidProblems(
                f"{path}: a line soon after line {number} is not {encoding}. {_ENCODING}"
            ) from None
