"""Files that outlast a power cut: fsync of the file, rename, fsync of the folder, in this order."""

import os
from collections.abc import Sequence
from pathlib import Path


def publish(temporary: Path, path: Path) -> None:
    """Give a complete file its name, durably; both must be on one file system."""
    sync(temporary)
    new = not path.parent.exists()
    if new:
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary.replace(path)
    sync(path.parent)
    if new:
        sync(path.parent.parent)


def sync(path: Path) -> None:
    """Wait until a file's bytes, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | bytearray | memoryview) -> None:
    """Write all of `data`; one call of the system may take less of it."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def write_pieces(descriptor: int, pieces: Sequence[bytes]) -> None:
    """Write pieces one after another, 1,024 at most, without joining them first."""
    written = os.writev(descriptor, pieces)
    if written < sum(map(len, pieces)):  # the disk is full, or a signal came between
        write_all(descriptor, memoryview(b"".join(pieces))[written:])
