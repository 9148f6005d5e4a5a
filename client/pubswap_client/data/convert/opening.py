"""Open a table, whatever its format: Parquet, JSON arrays and JSONL are read here."""

import json
from collections.abc import Callable, Collection, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from pubswap_client.data.convert.delimited import delimited
from pubswap_client.data.convert.table import OpenTable, Row, cell_of
from pubswap_client.data.convert.workbook import workbook
from pubswap_client.data.examples import reason_of
from pubswap_protocol.command_line.formats import ARRAY, CSV, EXCEL, PARQUET, UTF16, file_format
from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.problems import read_jsonl

_AT_ONCE = 1000  # rows that are Python objects at a time
_TEXT = (".txt", ".csv", ".tsv", ".tab")


def open_table(
    path: Path,
    *,
    wanted: Collection[str] = (),
    encoding: str | None = None,
    sheet: str | None = None,
    only: Collection[str] | None = None,
) -> OpenTable:
    """The table in a file: text in an encoding, a workbook's sheet, `only` some Parquet columns.

    The separator of a text is the one that parts the `wanted` columns.

    Raises InvalidSettings for an encoding or a sheet that does not exist, and InvalidProblems for a
    file of another format or with a fault.
    """
    found = file_format(path)
    if found is not None and found.first is not None:
        raise InvalidProblems(f"{path} is {found.name}. {found.first}.")
    if found == EXCEL:
        return workbook(path, sheet)
    if found in (CSV, UTF16) or path.suffix.lower() in _TEXT:
        return delimited(path, wanted, encoding)
    if found == PARQUET:
        return _parquet(path, only)
    return _array(path) if found == ARRAY else _jsonl(path)


def _parquet(path: Path, only: Collection[str] | None = None) -> OpenTable:
    """The table of a Parquet file, or some of its columns; raises InvalidProblems."""
    from pyarrow import ArrowException, parquet

    def rows() -> Iterator[Row]:
        try:
            with parquet.ParquetFile(path) as file:
                batches = file.iter_batches(batch_size=_AT_ONCE, columns=only)
                records = (record for batch in batches for record in batch.to_pylist())
                yield from (_row(number, record) for number, record in enumerate(records, start=1))
        except (ArrowException, ValueError) as error:
            raise _unreadable(path, "Parquet", error) from None

    try:
        columns = tuple(parquet.read_schema(path).names)
    except (ArrowException, ValueError) as error:
        raise _unreadable(path, "Parquet", error) from None
    return OpenTable("Parquet", columns, rows, typed=True)


def _unreadable(path: Path, name: str, error: Exception) -> InvalidProblems:
    return InvalidProblems(f"{path} cannot be read as {name}: {reason_of(error)}.")


def _array(path: Path) -> OpenTable:
    """The table of a JSON array of objects; raises InvalidProblems."""
    try:
        found = json.loads(path.read_bytes().removeprefix(b"\xef\xbb\xbf"), parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, "a JSON array", error) from None
    return _of_objects("JSON array", lambda: map(_row, range(1, len(found) + 1), found), "row")


def _jsonl(path: Path) -> OpenTable:
    """The table of JSONL with any fields; raises what `read_jsonl` does."""
    return _of_objects("JSONL", lambda: map(_of_line, read_jsonl(path)), "line")


def _of_line(numbered: tuple[int, str]) -> Row:
    number, line = numbered
    try:
        return _row(number, json.loads(line, parse_float=Decimal))
    except (ValueError, RecursionError):
        return Row(number, {}, "the line is not JSON" if line.strip() else "the line is empty")


def _of_objects(form: str, rows: Callable[[], Iterator[Row]], unit: str) -> OpenTable:
    """The table with all columns that any of its objects has."""
    columns = tuple(dict.fromkeys(column for row in rows() for column in row.cells))
    return OpenTable(form, columns, rows, unit, typed=True)


def _row(number: int, record: Any) -> Row:
    if not isinstance(record, dict):
        return Row(number, {}, "not a JSON object")
    return Row(number, {key: cell_of(value) for key, value in record.items()})
