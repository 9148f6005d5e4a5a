"""Parquet, JSON arrays, and JSONL with other fields than a problem's."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from pubswap_client.data.convert.table import Cell, CellFault, OpenTable, Row
from pubswap_client.data.examples import reason_of
from pubswap_protocol.command_line.amounts import size_text
from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.problems import MAX_LINE, read_jsonl

_AT_ONCE = 1000  # rows that are Python objects at a time
_LARGEST = 1 << 30  # bytes of a JSON array, which is read as a whole


def parquet_table(path: Path, wanted: set[str]) -> OpenTable:
    """The table of a Parquet file; raises what `OpenTable.checked` does, and InvalidProblems."""
    from pyarrow import ArrowException, parquet

    def rows() -> Iterator[Row]:
        try:
            with parquet.ParquetFile(path) as file:
                batches = file.iter_batches(batch_size=_AT_ONCE)
                records = (record for batch in batches for record in batch.to_pylist())
                yield from (_row(number, record) for number, record in enumerate(records, start=1))
        except (ArrowException, ValueError) as error:
            raise _unreadable(path, "Parquet", error) from None

    try:
        columns = tuple(parquet.read_schema(path).names)
    except (ArrowException, ValueError) as error:
        raise _unreadable(path, "Parquet", error) from None
    return OpenTable("Parquet", columns, rows, typed=True).checked(wanted, path)


def _unreadable(path: Path, name: str, error: Exception) -> InvalidProblems:
    return InvalidProblems(f"{path} cannot be read as {name}: {reason_of(error)}.")


def array_table(path: Path, wanted: set[str]) -> OpenTable:
    """The table of a JSON array of objects; raises as `parquet_table`."""
    if (size := path.stat().st_size) > _LARGEST:
        raise InvalidProblems(
            f"{path} is a JSON array of {size_text(size)}, which is read as a whole; at most "
            f"{size_text(_LARGEST)} are. Write it as JSONL, with one object a line."
        )
    try:
        found = json.loads(path.read_bytes().removeprefix(b"\xef\xbb\xbf"), parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, "a JSON array", error) from None
    table = OpenTable("JSON array", (), lambda: map(_row, range(1, len(found) + 1), found))
    return _of_objects(table, wanted, path)


def jsonl_table(path: Path, wanted: set[str]) -> OpenTable:
    """The table of JSONL with any fields; raises what `OpenTable.checked` does."""
    table = OpenTable("JSONL", (), lambda: map(_of_line, read_jsonl(path)), unit="line")
    return _of_objects(table, wanted, path)


def _of_line(numbered: tuple[int, str]) -> Row:
    number, line = numbered
    if len(line) > MAX_LINE:
        return Row(number, {}, f"the line has more than {MAX_LINE:,} characters")
    try:
        return _row(number, json.loads(line, parse_float=Decimal))
    except (ValueError, RecursionError):
        return Row(number, {}, "the line is not JSON" if line.strip() else "the line is empty")


def _of_objects(table: OpenTable, wanted: set[str], path: Path) -> OpenTable:
    """The table with all columns that any of its objects has."""
    columns = tuple(dict.fromkeys(column for row in table.rows() for column in row.cells))
    return replace(table, columns=columns, typed=True).checked(wanted, path)


def _row(number: int, record: Any) -> Row:
    if not isinstance(record, dict):
        return Row(number, {}, "not a JSON object")
    return Row(number, {key: _cell(value) for key, value in record.items()})


def _cell(value: Any) -> Cell:
    empty = (isinstance(value, str) and not value.strip()) or (
        isinstance(value, float) and math.isnan(value)
    )
    return None if empty else _plain(value)


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
    return CellFault(f"a value of the kind {type(value).__name__}")
