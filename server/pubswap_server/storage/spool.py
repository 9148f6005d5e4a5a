"""Bodies in transfer: temporary files in a folder of this process, removed even if it is killed.

All bodies, up or down, share a memory budget: the fewer there are, the larger their pieces.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from anyio import to_thread

from pubswap_protocol.command_line.locking import take
from pubswap_protocol.digests import Digester
from pubswap_protocol.errors import LengthMismatch, TooLarge
from pubswap_protocol.files import private_folder, write_pieces

_LOCK = ".lock"
ROOM = 4 << 20  # bytes for all bodies of this process together; each body holds several pieces
LEAST = 64 << 10  # bytes; each piece costs a switch to a thread
PIECES = 256  # held at most, because each may be one byte; one system call takes up to 1,024


class BodyBudget:
    """The memory that all bodies share: the fewer there are, the larger their pieces."""

    def __init__(self) -> None:
        self._bodies = 0

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Count a body while it is being sent or received."""
        self._bodies += 1
        try:
            yield
        finally:
            self._bodies -= 1

    @property
    def piece_bytes(self) -> int:
        """The number of bytes of each body to read or write at a time."""
        return max(LEAST, ROOM // max(1, self._bodies))


class Writer:
    """Appends a body to an open file in worker threads, many small pieces per write."""

    def __init__(self, descriptor: int, budget: BodyBudget) -> None:
        self.size = 0  # all bytes given, written or not
        self._descriptor, self._budget = descriptor, budget
        self._pieces: list[bytes] = []
        self._gathered = 0  # bytes of the pieces

    async def write(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._gathered += len(piece)
        self.size += len(piece)
        if self._gathered >= self._budget.piece_bytes or len(self._pieces) >= PIECES:
            await self.flush()

    async def flush(self) -> None:
        """Write the gathered pieces; if that fails, drop them, so that the file has no gap."""
        pieces, self._pieces, self._gathered = self._pieces, [], 0
        if pieces:
            await to_thread.run_sync(_append, self._descriptor, pieces)


def _append(descriptor: int, pieces: list[bytes]) -> None:
    """Write pieces, and start writing them back to disk at once.

    Otherwise the database's next commit would wait for the unwritten pages of many bodies:
    heartbeats during uploads took up to 3.9 s, and 1.5 s since.
    """
    start = os.lseek(descriptor, 0, os.SEEK_CUR)
    write_pieces(descriptor, pieces)
    written = os.lseek(descriptor, 0, os.SEEK_CUR) - start
    if sys.platform == "linux":  # starts writeback, and evicts only pages already on disk
        os.posix_fadvise(descriptor, start, written, os.POSIX_FADV_DONTNEED)


@dataclass(frozen=True)
class Received:
    """A body on disk under a temporary name, not yet a blob."""

    path: Path
    digest: str
    size: int

    def discard(self) -> None:
        """Remove it, unless it has become a blob."""
        self.path.unlink(missing_ok=True)


class Spool:
    """A folder for the bodies that this process is receiving.

    The process holds a lock on it while it lives. The next process to start can therefore tell
    which folders are left over, and removes only those.
    """

    def __init__(self, parent: Path) -> None:
        private_folder(parent)
        for leftover in parent.iterdir():
            _remove_abandoned(leftover)
        self.folder, self._lock = _locked_folder(parent)
        self.budget = BodyBudget()

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)

    def new(self) -> Path:
        """Create an empty, owner-only file."""
        descriptor, name = tempfile.mkstemp(dir=self.folder)
        os.close(descriptor)
        return Path(name)

    async def receive(
        self, body: AsyncIterator[bytes], limit: int, declared: int | None
    ) -> Received:
        """Stream a body to disk.

        Raises TooLarge over `limit` bytes, and LengthMismatch unless there are as many bytes as
        declared; either leaves no file behind.
        """
        if declared is not None and declared > limit:
            raise TooLarge(f"The body has {declared} bytes; at most {limit} are allowed.")
        path, digest = self.new(), Digester()
        try:
            with self.budget.under_way(), path.open("wb", buffering=0) as file:
                writer = Writer(file.fileno(), self.budget)
                async for chunk in body:
                    size = writer.size + len(chunk)
                    if size > limit:
                        raise TooLarge(f"The body is larger than {limit} bytes.")
                    if declared is not None and size > declared:
                        raise LengthMismatch(f"The body is longer than the {declared} declared.")
                    digest.update(chunk)
                    await writer.write(chunk)
                await writer.flush()
            if declared is not None and writer.size != declared:
                raise LengthMismatch(
                    f"The body has {writer.size} bytes where {declared} were declared."
                )
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return Received(path, digest.digest(), writer.size)


def _locked_folder(parent: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent))
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        with suppress(OSError):
            # Another process may just have locked the folder, taking it for a leftover, or even
            # have removed it.
            take(descriptor)
            if folder.exists():
                return folder, descriptor
        os.close(descriptor)


def _remove_abandoned(folder: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(folder / _LOCK, os.O_RDWR)
        try:
            take(descriptor)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
