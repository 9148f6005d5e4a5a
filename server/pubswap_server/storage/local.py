"""Blobs and uploads in a local folder, which processes of one machine can share.

blobs/ab/blake3-abcd…          a blob, named by its digest, see `digests.py`
blobs/ab/blake3-abcd….damaged  one whose bytes were found to be others
uploads/<id>                   an upload's first bytes; its size is its offset
incoming/…/                    bodies under way, see `spool.py`
"""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from pubswap_protocol.errors import DamagedBlob, Unavailable, UnknownUpload, WrongOffset
from pubswap_server.storage.files import publish
from pubswap_server.storage.private import private_folder
from pubswap_server.storage.spool import Spool
from pubswap_server.storage.store import Stored
from pubswap_server.storage.verified import VerifiedFiles, digest_of_name, file_name, folder_name

_DAMAGED = ".damaged"


class LocalBlobs:
    """Implements BlobStore."""

    def __init__(self, folder: Path, incoming: Spool) -> None:
        self.folder = private_folder(folder)
        self._incoming = incoming
        self._believed = VerifiedFiles()

    def take_damaged(self) -> set[str]:
        """See BlobStore."""
        found, self._believed.damaged = self._believed.damaged, set()
        return found

    def path(self, digest: str) -> Path:
        """See BlobStore."""
        path = self._place(digest)
        try:
            self._believed.check(path, digest)
        except FileNotFoundError:
            self._believed.damaged.add(digest)
            raise DamagedBlob(f"The stored blob {digest} is missing.") from None
        return path

    def read(self, digest: str) -> bytes:
        """See BlobStore."""
        return self.path(digest).read_bytes()

    def keep(self, file: Path, digest: str) -> None:
        """See BlobStore; the file is moved."""
        place = self._place(digest)
        with self._locked(fcntl.LOCK_SH):
            publish(file, place)
        self._believed.remember(place)

    def write(self, parts: Iterable[bytes]) -> tuple[str, int]:
        """See BlobStore."""
        written = self._incoming.write(parts)
        try:
            self.keep(written.path, written.digest)
        finally:
            written.discard()
        return written.digest, written.size

    def set_aside(self, digest: str) -> None:
        """See BlobStore."""
        path = self._place(digest)
        self._believed.damaged.discard(digest)
        with suppress(FileNotFoundError):
            path.replace(path.with_name(path.name + _DAMAGED))

    def remove_older(self, digest: str, moment: float) -> None:
        """See BlobStore; nobody stores a blob between the look at its time and its end."""
        path = self._place(digest)
        with self._locked(fcntl.LOCK_EX), suppress(FileNotFoundError):
            if path.stat().st_mtime < moment:
                path.unlink()

    def blobs(self) -> Iterator[Stored]:
        """See BlobStore."""
        for path in self.folder.glob("[0-9a-f][0-9a-f]/*"):
            if not path.suffix:
                yield from _stored(path, digest_of_name(path.name))

    def check(self) -> None:
        """See BlobStore."""
        if not os.access(self.folder, os.R_OK | os.W_OK | os.X_OK):
            raise Unavailable("The blob folder is not there, or cannot be written to.")

    def free_bytes(self) -> int:
        """See BlobStore: what the disk has left for this process's user."""
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        """Hold the folder's lock, which all processes of the machine share and no death keeps."""
        with (self.folder / ".lock").open("a") as file:
            fcntl.flock(file, how)
            yield

    def _place(self, digest: str) -> Path:
        return self.folder / folder_name(digest) / file_name(digest)


class LocalUploads:
    """Implements UploadStore: one file for each upload, and a lock on it while it is written."""

    at_hand = True

    def __init__(self, folder: Path) -> None:
        self.folder = private_folder(folder)

    def offset(self, upload: str) -> int:
        """See UploadStore."""
        try:
            return (self.folder / upload).stat().st_size
        except FileNotFoundError:
            return 0

    @contextmanager
    def appending(self, upload: str, offset: int) -> Iterator[IO[bytes]]:
        """See UploadStore."""
        path = self.folder / upload
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            _lock(path, file)
            here = file.seek(0, os.SEEK_END)
            if here != offset:
                raise WrongOffset(f"{here} bytes are here; go on from there, not from {offset}.")
            yield file

    @contextmanager
    def assembled(self, upload: str) -> Iterator[Path]:
        """See UploadStore."""
        path = self.folder / upload
        try:
            file = path.open("r+b", buffering=0)
        except FileNotFoundError:
            raise UnknownUpload("Nothing of this upload is here; send it from the start.") from None
        with file:
            _lock(path, file)
            yield path

    def drop(self, upload: str) -> None:
        """See UploadStore."""
        (self.folder / upload).unlink(missing_ok=True)

    def uploads(self) -> Iterator[Stored]:
        """See UploadStore."""
        for path in self.folder.iterdir():
            yield from _stored(path, path.name)


def _lock(path: Path, file: IO[bytes]) -> None:
    """Be the only one who writes, until the file is closed."""
    busy = "Another request is still sending to this upload; try again in a moment."
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Unavailable(busy, retry_after=1) from None
    # It may have become a blob between our opening and our locking it.
    with suppress(FileNotFoundError):
        if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
            return
    raise Unavailable(busy, retry_after=1)


def _stored(path: Path, name: str) -> Iterator[Stored]:
    with suppress(FileNotFoundError):
        found = path.stat()
        yield Stored(name, found.st_size, found.st_mtime)
