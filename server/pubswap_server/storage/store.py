"""Interfaces of the blob and upload stores, used from worker threads.

A blob is named by its digest and never changes. Its file is named `blake3-` and the digest's
hexadecimal, in a folder named by its first two digits. An upload is the first bytes of a blob; it
may stay for a day.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from pubswap_protocol.digests import Digester, digest_of_file, hexadecimal
from pubswap_protocol.errors import DamagedBlob, LengthMismatch, WrongOffset
from pubswap_server.storage.spool import Spool

_PIECE = 1 << 20
OWNER = "deployment"  # beside the blobs: the id of the deployment to which they belong
_VERIFIED_SECONDS = 600.0
_MAX_VERIFIED = 4096


def file_name(digest: str) -> str:
    return digest.replace(":", "-")


def folder_name(digest: str) -> str:
    return hexadecimal(digest)[:2]


def digest_of_name(file: str) -> str:
    """The digest in the name of a blob's file."""
    return file.replace("-", ":")


@dataclass(frozen=True)
class Stored:
    """A blob or an upload as the store lists it; `modified` in seconds since 1970."""

    name: str
    size: int
    modified: float


@dataclass(frozen=True)
class Assembled:
    """An upload as one local file, and whether its bytes are already in the blob's place."""

    path: Path
    in_place: bool = False


class BlobStore(ABC):
    """Blobs, each either whole and durable or absent.

    A file is hashed before it is read, and again when its size, times or inode have changed, or
    after ten minutes.
    """

    def __init__(self, incoming: Spool) -> None:
        self._incoming = incoming
        self._damaged: set[str] = set()
        self._kept: set[str] = set()
        self._verified: dict[Path, tuple[tuple[int, ...], float]] = {}
        self._verified_lock = threading.Lock()

    @abstractmethod
    def path(self, digest: str) -> Path:
        """A local file with the blob's bytes, to be read only.

        Raises DamagedBlob if it is missing, or its bytes do not have the digest.
        """

    def read(self, digest: str) -> bytes:
        """A blob's bytes; raises as `path` does."""
        return self.path(digest).read_bytes()

    @abstractmethod
    def keep(self, file: Path, digest: str, *, in_place: bool = False) -> None:
        """Store a local file, whose digest the caller has computed, as a blob, durable on return.

        The file is moved or copied; `in_place` is that of `Assembled`. Raises OSError, for example
        if the disk is full, or Unavailable; then nothing is stored.
        """

    def write(self, parts: Iterable[bytes]) -> tuple[str, int]:
        """Store parts as one blob, durable on return; returns digest and size."""
        file, digester, size = self._incoming.new(), Digester(), 0
        try:
            with file.open("wb", buffering=_PIECE) as out:
                for part in parts:
                    digester.update(part)
                    size += out.write(part)
            self.keep(file, digester.digest())
        finally:
            file.unlink(missing_ok=True)
        return digester.digest(), size

    def kept(self) -> set[str]:
        """Digests of the blobs that this process has stored, except those forgotten since."""
        return self._kept.copy()

    def forget_kept(self, digests: set[str]) -> None:
        self._kept -= digests

    @abstractmethod
    def owner(self) -> str | None:
        """The id of the deployment to which the blobs belong; None for a store without one."""

    @abstractmethod
    def claim(self, owner: str) -> str | None:
        """Become this deployment's unless the store has an owner; returns the owner then."""

    @abstractmethod
    def hand_over(self, owner: str) -> None:
        """Become this deployment's, whoever was the owner."""

    @abstractmethod
    def set_aside(self, digest: str) -> bool:
        """Take a damaged blob out of use, and off the list of `take_damaged`.

        It is kept under another name for the operator. Returns False if the blob is intact after
        all: it may have been sent again, or put back, since it was found damaged or missing.
        """

    def take_damaged(self) -> set[str]:
        """The digests of blobs found damaged or missing since the last call."""
        damaged, self._damaged = self._damaged, set()
        return damaged

    @abstractmethod
    def remove_older(self, digest: str, moment: float) -> None:
        """Remove a blob that was stored before `moment` (seconds since 1970), if it is there."""

    @abstractmethod
    def blobs(self) -> Iterator[Stored]:
        """All blobs, named by digest."""

    @abstractmethod
    def check(self) -> None:
        """Raises Unavailable or OSError if the store does not answer."""

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Free space in bytes; None if the store reports no limit."""

    def _verify(self, path: Path, digest: str) -> None:
        """Raises DamagedBlob unless the file has the digest; FileNotFoundError if there is none."""
        state = _state(path)
        with self._verified_lock:
            verified, at = self._verified.get(path, ((), 0.0))
        if verified == state and time.monotonic() - at < _VERIFIED_SECONDS:
            return
        if digest_of_file(path) != digest:
            self._damaged.add(digest)
            raise DamagedBlob(f"The stored bytes of {digest} are damaged; they are not served.")
        self._note_verified(path, state)

    def _note_verified(self, path: Path, state: tuple[int, ...] | None = None) -> None:
        with self._verified_lock:
            if len(self._verified) >= _MAX_VERIFIED:
                self._verified.clear()
            self._verified[path] = (state or _state(path), time.monotonic())

    def _missing(self, digest: str) -> DamagedBlob:
        self._damaged.add(digest)
        return DamagedBlob(f"The stored blob {digest} is missing.")


def _state(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class UploadStore(Protocol):
    def offset(self, upload: str) -> int:
        """The number of bytes stored from the start; 0 if there are none."""

    def appending(self, upload: str, offset: int) -> AbstractContextManager[IO[bytes]]:
        """A file that takes the bytes from `offset` on; written bytes are kept on any exit.

        Raises WrongOffset unless `offset` is the upload's, Unavailable while another request
        writes to the upload.
        """

    def assembled(self, upload: str, size: int, digest: str) -> AbstractContextManager[Assembled]:
        """All bytes, safe from changes by others; the file may be moved away.

        Bytes in the place of the blob with this digest are deleted if the block raises an error.

        Raises UnknownUpload if there are none, LengthMismatch unless there are `size` of them,
        Unavailable while another request writes.
        """

    def drop(self, upload: str) -> None:
        """Delete an upload's bytes."""

    def uploads(self) -> Iterator[Stored]:
        """All uploads that have bytes stored."""


def check_size(stored: int, size: int) -> None:
    """Raises LengthMismatch unless as many bytes are stored as were announced."""
    if stored != size:
        raise LengthMismatch(f"{stored} of {size} bytes are stored; send the rest first.")


def check_offset(stored: int, offset: int) -> None:
    """Raises WrongOffset unless bytes from `offset` on continue the stored ones."""
    if stored != offset:
        raise WrongOffset(f"{stored} bytes are stored; continue from there, not from {offset}.")
