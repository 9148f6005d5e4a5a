"""Open a table, whatever its format."""

from collections.abc import Collection
from pathlib import Path

from pubswap_client.data.convert.table import OpenTable
from pubswap_protocol.command_line.formats import ARRAY, CSV, EXCEL, PARQUET, UTF16, file_format
from pubswap_protocol.errors import InvalidProblems

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
        from pubswap_client.data.convert.workbook import workbook

        return workbook(path, sheet)
    if found in (CSV, UTF16) or path.suffix.lower() in _TEXT:
        from pubswap_client.data.convert.delimited import delimited

        return delimited(path, wanted, encoding)
    from pubswap_client.data.convert.records import array_table, jsonl_table, parquet_table

    if found == PARQUET:
        return parquet_table(path, only)
    return array_table(path) if found == ARRAY else jsonl_table(path)
