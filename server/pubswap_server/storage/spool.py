"""Bodies under way: files in a folder of this process, gone when it ends or is killed."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pubswap_protocol.digests import Digester
from pubswap_protocol.errors import LengthMismatch, TooLarge
from pubswap_server.storage.files import Writer, begin_writing_out, write_whole
from pubswap_server.storage.private import private_folder

_LOCK = ".lock"
_BATCH = 1 << 20  # bytes handed to the writing thread at a time


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
    """A folder that holds only what this process is receiving.

    Its lock ends with the process, so that the next one to start knows which folders are left
    over and removes them, while other processes keep theirs.
    """

    def __init__(self, parent: Path) -> None:
        private_folder(parent)
        for leftover in parent.iterdir():
            _remove_if_left(leftover)
        self.folder, self._lock = _own_folder(parent)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)

    def new(self) -> Path:
        """An empty file."""
        descriptor, name = tempfile.mkstemp(dir=self.folder)
        os.close(descriptor)
        return Path(name)

    async def receive(
        self, body: AsyncIterator[bytes], limit: int, declared: int | None
    ) -> Received:
        """Stream a body to disk.

        Raises TooLarge over `limit` bytes, and LengthMismatch unless there are as many bytes as
        declared. Nothing is left behind then.
        """
        if declared is not None and declared > limit:
            raise TooLarge(f"The body has {declared} bytes; at most {limit} are taken here.")
        path, digest = self.new(), Digester()
        try:
            with path.open("wb", buffering=0) as file, Writer(file.fileno()) as writer:
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

    def write(self, parts: Iterable[bytes]) -> Received:
        """Parts as one file."""
        path, digest, size = self.new(), Digester(), 0

        def take(batch: memoryview, begin: int) -> None:
            digest.update(batch)
            write_whole(file.fileno(), batch)
            begin_writing_out(file.fileno(), begin, len(batch))

        try:
            # Hashed and written by another thread, while the next parts are made.
            with path.open("wb", buffering=0) as file, ThreadPoolExecutor(1, "writing") as thread:
                under_way = thread.submit(take, memoryview(b""), 0)
                for batch in _batches(parts):
                    under_way.result()
                    under_way = thread.submit(take, batch, size)
                    size += len(batch)
                under_way.result()
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return Received(path, digest.digest(), size)


def _batches(parts: Iterable[bytes]) -> Iterator[memoryview]:
    """The same bytes in pieces that are worth a thread's while.

    A piece is good until the next but one is asked for: of new memory, each page would have to be
    made and cleared, which takes longer than to write it.
    """
    buffers = memoryview(bytearray(_BATCH)), memoryview(bytearray(_BATCH))
    turn = filled = 0
    for part in parts:
        left = memoryview(part)
        while left:
            count = min(len(left), _BATCH - filled)
            buffers[turn][filled : filled + count] = left[:count]
            left, filled = left[count:], filled + count
            if filled == _BATCH:
                yield buffers[turn]
                turn, filled = 1 - turn, 0
    yield buffers[turn][:filled]


def _own_folder(parent: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent))
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        with suppress(OSError):
            # Another process may have taken the folder for a left-over in this very moment.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return folder, descriptor
        os.close(descriptor)


def _remove_if_left(folder: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(folder / _LOCK, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
