"""Files that outlast a power cut: fsync of the file, rename, fsync of the folder, in this order."""

import asyncio
import os
from pathlib import Path
from typing import ClassVar, Self

from anyio import to_thread


def publish(temporary: Path, place: Path) -> None:
    """Give a complete file its name, durably. Both must be on one file system."""
    sync_file(temporary)
    made = not place.parent.exists()
    if made:
        place.parent.mkdir(parents=True, exist_ok=True)
    temporary.replace(place)
    sync_folder(place.parent)
    if made:
        sync_folder(place.parent.parent)


def sync_file(path: Path) -> None:
    """Wait until a file's bytes are on the disk."""
    _sync(path)


def sync_folder(folder: Path) -> None:
    """Wait until a folder's names are on the disk: a rename lives there."""
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


GATHERED = 512 << 10
GATHERED_BY_ALL = 8 << 20
_AT_ONCE = 512  # the system takes 1,024 pieces at most


class Writer:
    """Appends to an open file in a worker thread, while the next bytes arrive."""

    open: ClassVar[int] = 0  # how many there are, who share what may be gathered

    def __init__(self, descriptor: int) -> None:
        """Bytes go to the file's present position."""
        self.size = 0  # all bytes given, written or not
        self._descriptor = descriptor
        self._pieces: list[bytes] = []
        self._waiting = 0
        self._writing: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        Writer.open += 1
        return self

    def __exit__(self, *_: object) -> None:
        Writer.open -= 1

    async def write(self, piece: bytes) -> None:
        """Take a piece; raises OSError if the disk is full."""
        if not piece:
            return
        self._pieces.append(piece)
        self._waiting += len(piece)
        self.size += len(piece)
        # What one thread writes and what is gathered meanwhile share the room.
        if self._waiting >= min(GATHERED, GATHERED_BY_ALL // (2 * max(1, Writer.open))):
            await self._hand_over()

    async def flush(self) -> None:
        """Write what is gathered, and wait for it."""
        await self._hand_over()
        await self._written()

    async def _hand_over(self) -> None:
        await self._written()
        pieces, self._pieces, self._waiting = self._pieces, [], 0
        if pieces:
            self._writing = asyncio.create_task(to_thread.run_sync(self._write_all, pieces))

    async def _written(self) -> None:
        task, self._writing = self._writing, None
        if task is None:
            return
        try:
            await task
        except BaseException:
            # What comes after bytes that were not written must not be, or the file had a gap.
            self._pieces, self._waiting = [], 0
            raise

    def _write_all(self, pieces: list[bytes]) -> None:
        begin = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        self._write_pieces(pieces)
        begin_writing_out(self._descriptor, begin, sum(map(len, pieces)))

    def _write_pieces(self, pieces: list[bytes]) -> None:
        """Write pieces in order; one call of the system may take less than it is given."""
        left = [memoryview(piece) for piece in pieces]
        while left:
            written = os.writev(self._descriptor, left[:_AT_ONCE])
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if left:
                left[0] = left[0][written:]


def write_whole(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of it; one call of the system may take less than it is given."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def begin_writing_out(descriptor: int, begin: int, count: int) -> None:
    """Have the disk begin with bytes just written, so that the fsync has little left to do.

    The pages stay in memory, for what is being written out cannot be dropped.
    """
    os.posix_fadvise(descriptor, begin, count, os.POSIX_FADV_DONTNEED)
