"""What a file is, by its first bytes: for readers, and for messages about another format."""

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from zipfile import BadZipFile, ZipFile

HEAD = 100  # bytes that tell a format


@dataclass(frozen=True)
class FileFormat:
    """A format that is not JSONL. `first` is what to do before `pubswap data convert` reads it."""

    name: str
    first: str | None = None


EXCEL = FileFormat("an Excel workbook")
PARQUET = FileFormat("a Parquet file")
ARRAY = FileFormat("a JSON array")
CSV = FileFormat("a CSV file")
UTF16 = FileFormat("text in UTF-16")

_AS_XLSX = "Save it as an Excel workbook (.xlsx) or as CSV, and then convert that"
_UNPACK = "Unpack it, and then convert the file in it"
_BEGINNINGS = {
    b"PAR1": PARQUET,
    BOM_UTF16_LE: UTF16,
    BOM_UTF16_BE: UTF16,
    b"\xd0\xcf\x11\xe0": FileFormat(
        "an old Excel workbook (.xls), or one with a password", _AS_XLSX + ", without a password"
    ),
    b"ARROW1": FileFormat("an Arrow file", "Save it as Parquet, and then convert that"),
    b"SQLite format 3\0": FileFormat("a SQLite database", "Export the table as CSV"),
    b"%PDF": FileFormat("a PDF", "Export the table behind it as CSV"),
    b"\x1f\x8b": FileFormat("compressed by gzip", _UNPACK),
    b"BZh": FileFormat("compressed by bzip2", _UNPACK),
    b"\xfd7zXZ": FileFormat("compressed by xz", _UNPACK),
    b"\x28\xb5\x2f\xfd": FileFormat("compressed by zstd", _UNPACK),
}
_MARKUP = FileFormat("a web page or XML", "Download or export the table itself, as CSV")
# What a ZIP file is by the names in it.
_ZIPPED = {
    "xl/workbook.bin": FileFormat("a binary Excel workbook (.xlsb)", _AS_XLSX),
    "xl/": EXCEL,
    "word/": FileFormat("a Word document", "Copy its table into a sheet, and save that as .xlsx"),
    "content.xml": FileFormat("an OpenDocument file", _AS_XLSX),
    "": FileFormat("a ZIP archive", _UNPACK),
}
_SEPARATED = (".csv", ".tsv", ".tab")


def format_of(head: bytes, path: Path) -> FileFormat | None:
    """The format of a file with these first bytes; None if nothing speaks against JSONL.

    A table of text is known by its suffix alone, and a ZIP file by the names in it.
    """
    if head.startswith(b"PK\x03\x04"):
        return _zipped(path)
    for beginning, found in _BEGINNINGS.items():
        if head.startswith(beginning):
            return found
    if path.suffix.lower() in _SEPARATED:
        return CSV
    text = head.removeprefix(BOM_UTF8).lstrip()
    return {b"[": ARRAY, b"<": _MARKUP}.get(text[:1])


def file_format(path: Path) -> FileFormat | None:
    """The format of a file; raises OSError if it cannot be read."""
    with path.open("rb") as file:
        return format_of(file.read(HEAD), path)


def _zipped(path: Path) -> FileFormat:
    try:
        with ZipFile(path) as archive:
            names = archive.namelist()
    except (BadZipFile, NotImplementedError):
        return FileFormat("a damaged ZIP file or Excel workbook", "Copy or save it again")
    return next(
        found
        for beginning, found in _ZIPPED.items()
        if not beginning or any(name.startswith(beginning) for name in names)
    )


def not_jsonl(path: Path, found: FileFormat) -> str:
    """That a file is another format than JSONL, and what to do."""
    remedy = (
        f"{found.first}, with `pubswap data convert`"
        if found.first
        else f"Convert it with `pubswap data convert {quote(str(path))} --prompt COLUMN "
        "--answer COLUMN --out private.jsonl`"
    )
    return f"{path} is {found.name}, not JSONL, which PubSwap reads. {remedy}."
