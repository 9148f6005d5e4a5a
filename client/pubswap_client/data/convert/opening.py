"""Open a table, whatever its format."""

from pathlib import Path

from pubswap_client.data.convert.table import OpenTable
from pubswap_protocol.command_line.formats import ARRAY, CSV, EXCEL, PARQUET, UTF16, file_format
from pubswap_protocol.errors import InvalidProblems, InvalidSettings

_TEXT = (".txt", ".csv", ".tsv", ".tab")


def open_table(path: Path, wanted: set[str], encoding: str | None, sheet: str | None) -> OpenTable:
    """The table in a file that has the `wanted` columns.

    Raises InvalidSettings, naming the columns that there are, and InvalidProblems for a file of
    another format or with a fault.
    """
    found = file_format(path)
    if encoding is not None and found not in (CSV, UTF16, None):
        raise InvalidSettings(f"--encoding is for tables of text, and {path} is {found.name}.")
    if sheet is not None and found != EXCEL:
        raise InvalidSettings(f"--sheet is for Excel workbooks, and {path} is none.")
    if found is not None and found.first is not None:
        raise InvalidProblems(f"{path} is {found.name}. {found.first}.")
    if found == EXCEL:
        from pubswap_client.data.convert.workbook import workbook

        return workbook(path, wanted, sheet)
    if found in (CSV, UTF16) or path.suffix.lower() in _TEXT:
        from pubswap_client.data.convert.delimited import delimited

        return delimited(path, wanted, encoding)
    from pubswap_client.data.convert.records import array_table, jsonl_table, parquet_table

    readers = {PARQUET: parquet_table, ARRAY: array_table, None: jsonl_table}
    return readers[found](path, wanted)
