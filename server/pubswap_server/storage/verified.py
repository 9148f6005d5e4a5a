"""Blobs' files: their names, and that they are believed only while they match their digests.

A blob's file is called `blake3-` and the digest's hexadecimal, in a folder of its first two digits.
"""

import threading
import time
from pathlib import Path

from pubswap_protocol.digests import digest_of_file, hexadecimal
from pubswap_protocol.errors import DamagedBlob

BELIEVED_SECONDS = 600.0
_REMEMBERED = 4096


def file_name(digest: str) -> str:
    """The name of a blob's file."""
    return digest.replace(":", "-")


def folder_name(digest: str) -> str:
    """The name of the folder of a blob's file."""
    return hexadecimal(digest)[:2]


def digest_of_name(file: str) -> str:
    """The digest in the name of a blob's file."""
    return file.replace("-", ":")


class VerifiedFiles:
    """Which files were found intact, so that not every read hashes a file again.

    A file is hashed again when its size, times or inode are others, and after ten minutes.
    `damaged` holds the digests that were found wrong.
    """

    def __init__(self) -> None:
        self.damaged: set[str] = set()
        self._seen: dict[Path, tuple[tuple[int, ...], float]] = {}
        self._lock = threading.Lock()

    def check(self, path: Path, digest: str) -> None:
        """Raises DamagedBlob unless the file has the digest; FileNotFoundError if there is none."""
        state = _state(path)
        with self._lock:
            known, at = self._seen.get(path, ((), 0.0))
        if known == state and time.monotonic() - at < BELIEVED_SECONDS:
            return
        if digest_of_file(path) != digest:
            self.damaged.add(digest)
            raise DamagedBlob(f"The stored bytes of {digest} are damaged; they are not served.")
        self.remember(path, state)

    def remember(self, path: Path, state: tuple[int, ...] | None = None) -> None:
        """Note that a file was intact in this state, by default as it is now."""
        with self._lock:
            if len(self._seen) >= _REMEMBERED:
                self._seen.clear()
            self._seen[path] = (state or _state(path), time.monotonic())


def _state(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
