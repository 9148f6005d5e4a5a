"""A backup's manifest: it is written last, names everything else, and completes the backup.

manifest.json
database-<digits>.sqlite    a snapshot of all rows
blobs/ab/abcd…              every blob that a row relies on
operator-token              only if it was asked for
"""

from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from pubswap_protocol.command_line.amounts import size_text
from pubswap_protocol.errors import BackupFault, DamagedBlob, first_fault
from pubswap_protocol.files import publish
from pubswap_protocol.messages import Digest
from pubswap_server.storage.store import BlobStore

NAME = "manifest.json"
TOKEN = "operator-token"  # noqa: S105 - a file's name
DATABASES = "database-*.sqlite"
_PIECE = 4 << 20


class DatabaseFile(BaseModel, extra="forbid", frozen=True):
    file: str
    digest: Digest
    size: int


class BackupManifest(BaseModel, extra="forbid", frozen=True):
    """The contents of a backup; sizes in bytes."""

    format: Literal[1] = 1
    software: str
    schema_revision: str
    made_at: datetime
    database: DatabaseFile
    rows: dict[str, int]
    blobs: dict[Digest, int]
    missing: list[Digest]
    operator_token: bool

    def text(self) -> str:
        rows, made_at = self.rows, self.made_at.isoformat(timespec="seconds")
        return (
            f"{rows.get('runs', 0)} runs with {rows.get('members', 0)} members, "
            f"{rows.get('updates', 0)} updates and {rows.get('events', 0)} events, and "
            f"{len(self.blobs)} blobs ({size_text(sum(self.blobs.values()))}), as of {made_at}"
        )


def write_manifest(folder: Path, manifest: BackupManifest, temporary: Path) -> None:
    """Make the folder this backup, durably."""
    temporary.write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
    publish(temporary, folder / NAME)


def read_manifest(folder: Path) -> BackupManifest:
    """The folder's manifest; raises BackupFault."""
    try:
        text = (folder / NAME).read_bytes()
    except FileNotFoundError:
        raise BackupFault(
            f"{folder} has no {NAME}: it is not a backup, or an unfinished one. Make it "
            "again with `pubswap admin backup`, or name another folder."
        ) from None
    try:
        return BackupManifest.model_validate_json(text)
    except ValidationError as error:
        raise BackupFault(
            f"{folder / NAME} cannot be read ({first_fault(error)}). It is damaged, or from a "
            "newer PubSwap."
        ) from None


def copy_blob(source: Path, digest: str, into: BlobStore) -> int:
    """Store a copy of a blob's file; returns its size. Raises DamagedBlob for another digest."""
    with source.open("rb") as file:
        actual, size = into.write(iter(lambda: file.read(_PIECE), b""))
    if actual != digest:
        raise DamagedBlob(f"The blob {digest} had the digest {actual} when copied.")
    return size
