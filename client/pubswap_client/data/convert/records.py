"""Parquet, JSON arrays, and JSONL with other fields than a problem's."""

import json
import math
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from pubswap_client.data.convert.table import BadCell, BadRow, Cell, OpenTable, Row, check_columns
from pubswap_protocol.command_line.amounts import size_text
from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.problems import MAX_LINE, read_jsonl

_AT_ONCE = 1000  # rows that are Python objects at a time
_LARGEST = 1 << 30  # bytes of a JSON array, which is read as a whole


def parquet_table(path: Path, wanted: set[str]) -> OpenTable:
    """The table of a Parquet file; raises what `check_columns` does, and InvalidProblems."""
    from pyarrow import ArrowException, parquet

    def rows() -> Iterator[Row | BadRow]:
        try:
            with parquet.ParquetFile(path) as file:
                batches = file.iter_batches(batch_size=_AT_ONCE)
                records = (record for batch in batches for record in batch.to_pylist())
                yield from (_row(number, record) for number, record in enumerate(records, start=1))
        except (ArrowException, ValueError) as error:
            raise _unreadable(path, "Parquet", error) from None

    try:
        with parquet.ParquetFile(path) as file:
            columns = tuple(file.schema_arrow.names)
    except (ArrowException, ValueError) as error:
        raise _unreadable(path, "Parquet", error) from None
    check_columns(wanted, columns, path)
    return OpenTable("Parquet", columns, rows, typed=True)


def _unreadable(path: Path, name: str, error: Exception) -> InvalidProblems:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return InvalidProblems(f"{path} cannot be read as {name}: {reason}.")


def array_table(path: Path, wanted: set[str]) -> OpenTable:
    """The table of a JSON array of objects; raises what `check_columns` does, InvalidProblems."""
    if (size := path.stat().st_size) > _LARGEST:
        raise InvalidProblems(
            f"{path} is a JSON array of {size_text(size)}, which is read as a whole; at most "
            f"{size_text(_LARGEST)} are. Write it as JSONL, with one object a line."
        )
    try:
        found = json.loads(path.read_bytes().removeprefix(b"\xef\xbb\xbf"), parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, "a JSON array", error) from None

    def rows() -> Iterator[Row | BadRow]:
        for number, record in enumerate(found, start=1):
            yield _row(number, record)

    return _records(path, wanted, OpenTable("JSON array", (), rows, typed=True))


def jsonl_table(path: Path, wanted: set[str]) -> OpenTable:
    """The table of JSONL with any fields; raises what `check_columns` does."""

    def rows() -> Iterator[Row | BadRow]:
        for number, line in read_jsonl(path):
            try:
                long = len(line) > MAX_LINE
                yield (
                    BadRow(number, f"the line has more than {MAX_LINE:,} characters")
                    if long
                    else _row(number, json.loads(line, parse_float=Decimal))
                )
            except (ValueError, RecursionError):
                empty = not line.strip()
                yield BadRow(number, "the line is empty" if empty else "the line is not JSON")

    return _records(path, wanted, OpenTable("JSONL", (), rows, unit="line", typed=True))


def _records(path: Path, wanted: set[str], table: OpenTable) -> OpenTable:
    """The table with all columns that any of its objects has."""
    columns: dict[str, None] = {}
    for row in table.rows():
        if isinstance(row, Row):
            columns |= dict.fromkeys(row.cells)
    check_columns(wanted, tuple(columns), path)
    return OpenTable(table.format, tuple(columns), table.rows, table.unit, typed=True)


def _row(number: int, record: Any) -> Row | BadRow:
    if not isinstance(record, dict):
        return BadRow(number, "not a JSON object")
    return Row(number, {key: _cell(value) for key, value in record.items()})


def _cell(value: Any) -> Cell:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, float) and math.isnan(value):
        return None
    return _plain(value)


def _plain(value: Any) -> Cell:
    """A value in JSON's terms; dates, which it lacks, become text."""
    if value is None or isinstance(value, str | bool | int | float | Decimal):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, date | time | timedelta):
        return str(value)
    return BadCell(f"a value of the kind {type(value).__name__}")
