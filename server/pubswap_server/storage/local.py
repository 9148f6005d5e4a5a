"""Blobs and uploads in a local folder, which processes of one machine can share.

blobs/ab/blake3-abcd…          a blob, named by its digest
blobs/ab/blake3-abcd….damaged  a blob found damaged
blobs/deployment               the id of the deployment to which the blobs belong
uploads/<id>                   an upload's first bytes; its size is its offset
incoming/…/                    bodies under way, see `spool.py`
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO

from pubswap_protocol.command_line.locking import take, waiting
from pubswap_protocol.errors import DamagedBlob, Unavailable, UnknownUpload
from pubswap_protocol.files import create_durably, private_folder, publish, sync, syncing
from pubswap_server.storage.spool import Spool
from pubswap_server.storage.store import (
    OWNER,
    Assembled,
    BlobStore,
    Stored,
    UploadStore,
    check_offset,
    check_size,
    digest_of_name,
    file_name,
    folder_name,
)

_DAMAGED = ".damaged"


class LocalBlobs(BlobStore):
    def __init__(self, folder: Path, incoming: Spool) -> None:
        super().__init__(incoming)
        self.folder = private_folder(folder)

    def path(self, digest: str) -> Path:
        path = self._file(digest)
        try:
            self._verify(path, digest)
        except FileNotFoundError:
            raise self._missing(digest) from None
        return path

    def keep(self, file: Path, digest: str, *, in_place: bool = False) -> None:
        self._kept.add(digest)
        path = self._file(digest)
        os.utime(file)  # a blob's age counts from here, and an upload may have waited for hours
        with self._locked(shared=True):
            path.parent.mkdir(exist_ok=True)
            sync(self.folder)  # another process may have made the folder but not synced it yet
            publish(file, path)
        self._note_verified(path)

    def owner(self) -> str | None:
        with suppress(FileNotFoundError):
            return (self.folder / OWNER).read_text(encoding="utf-8", errors="replace").strip()
        return None

    def claim(self, owner: str) -> str | None:
        create_durably(self.folder / OWNER, owner.encode() + b"\n")
        return self.owner()

    def hand_over(self, owner: str) -> None:
        temporary = self._incoming.new()
        temporary.write_bytes(owner.encode() + b"\n")
        publish(temporary, self.folder / OWNER)

    def set_aside(self, digest: str) -> bool:
        path = self._file(digest)
        # The lock keeps others from storing the blob again between the check and the rename.
        with self._locked():
            with suppress(DamagedBlob):
                self.path(digest)
                return False
            self._damaged.discard(digest)
            with suppress(FileNotFoundError):
                path.replace(path.with_name(path.name + _DAMAGED))
        return True

    def remove_older(self, digest: str, moment: float) -> None:
        path = self._file(digest)
        # The lock keeps others from storing the blob between the look at its time and its removal.
        with self._locked(), suppress(FileNotFoundError):
            if path.stat().st_mtime < moment:
                path.unlink()

    def blobs(self) -> Iterator[Stored]:
        for path in self.folder.glob("[0-9a-f][0-9a-f]/*"):
            if not path.suffix:
                yield from _stored(path, digest_of_name(path.name))

    def check(self) -> None:
        if not os.access(self.folder, os.R_OK | os.W_OK | os.X_OK):
            raise Unavailable("The blob folder is missing, or cannot be written to.")

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.folder).free

    def _locked(self, *, shared: bool = False) -> AbstractContextManager[None]:
        """The folder's lock, which all processes of the machine use."""
        return waiting(self.folder / ".lock", shared=shared)

    def _file(self, digest: str) -> Path:
        return self.folder / folder_name(digest) / file_name(digest)


class LocalUploads(UploadStore):
    """One file for each upload, locked while it is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = private_folder(folder)

    def offset(self, upload: str) -> int:
        try:
            return (self.folder / upload).stat().st_size
        except FileNotFoundError:
            return 0

    @contextmanager
    def appending(self, upload: str, offset: int) -> Iterator[IO[bytes]]:
        path = self.folder / upload
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            _lock(path, file)
            check_offset(file.seek(0, os.SEEK_END), offset)
            yield file

    @contextmanager
    def assembled(self, upload: str, size: int, digest: str) -> Iterator[Assembled]:
        path = self.folder / upload
        try:
            file = path.open("r+b", buffering=0)
        except FileNotFoundError:
            raise UnknownUpload(
                "No bytes of this upload are stored; send it from the start."
            ) from None
        with file:
            _lock(path, file)
            check_size(file.seek(0, os.SEEK_END), size)
            with syncing(file.fileno()):  # so that `keep` has little left to sync
                yield Assembled(path)

    def drop(self, upload: str) -> None:
        (self.folder / upload).unlink(missing_ok=True)

    def uploads(self) -> Iterator[Stored]:
        for path in self.folder.iterdir():
            yield from _stored(path, path.name)


def _lock(path: Path, file: IO[bytes]) -> None:
    """Lock out other writers until the file is closed; raises Unavailable if there is one."""
    busy = "Another request is still sending to this upload; try again in a moment."
    try:
        take(file.fileno())
    except BlockingIOError:
        raise Unavailable(busy, retry_after=1) from None
    # The file may have become a blob between opening and locking it.
    with suppress(FileNotFoundError):
        if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
            return
    raise Unavailable(busy, retry_after=1)


def _stored(path: Path, name: str) -> Iterator[Stored]:
    with suppress(FileNotFoundError):
        status = path.stat()
        yield Stored(name, status.st_size, status.st_mtime)
