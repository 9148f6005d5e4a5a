"""Bytes of a request to a file, without keeping the event loop on a slow disk."""

import os

from anyio import to_thread

GATHERED = 256 << 10
_AT_ONCE = 512  # the system takes 1,024 pieces at most


class Writer:
    """Appends to an open file: pieces are gathered, and written in a worker thread."""

    def __init__(self, descriptor: int) -> None:
        self.size = 0  # all bytes given, written or not
        self._descriptor = descriptor
        self._pieces: list[bytes] = []
        self._waiting = 0

    async def write(self, piece: bytes) -> None:
        """Take a piece; raises OSError if the disk is full."""
        if not piece:
            return
        self._pieces.append(piece)
        self._waiting += len(piece)
        self.size += len(piece)
        if self._waiting >= GATHERED:
            await self.flush()

    async def flush(self) -> None:
        """Write what is gathered."""
        pieces, self._pieces, self._waiting = self._pieces, [], 0
        if pieces:
            await to_thread.run_sync(_write_all, self._descriptor, pieces)


def _write_all(descriptor: int, pieces: list[bytes]) -> None:
    """Write pieces in order; one call of the system may take less than it is given."""
    left = [memoryview(piece) for piece in pieces]
    while left:
        written = os.writev(descriptor, left[:_AT_ONCE])
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if left:
            left[0] = left[0][written:]
