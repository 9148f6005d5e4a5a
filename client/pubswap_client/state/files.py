"""Files for their owner only that are written whole or not at all."""

import os
from contextlib import suppress
from pathlib import Path

from pubswap_protocol import files
from pubswap_protocol.errors import NotSaved

_TEMPORARY = ".tmp"


def write_whole(path: Path, *pieces: bytes | memoryview) -> None:
    """Replace a file, mode 0600; after a crash at any moment it is the old one or the new one.

    Its bytes are those of the pieces, one after another.

    Raises NotSaved, naming the path and the bytes needed, if the disk does not take it; the old
    file is then as it was.
    """
    temporary = path.with_name(path.name + _TEMPORARY)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for piece in pieces:
                files.write_all(descriptor, piece)
        finally:
            os.close(descriptor)
        files.publish(temporary, path)
    except OSError as error:
        size = sum(len(piece) for piece in pieces)
        raise NotSaved(
            f"{path} could not be saved, which takes {size} bytes: {error.strerror}. "
            "What was saved before is untouched; make room and start again."
        ) from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def append_durably(path: Path, line: bytes) -> int:
    """Add a line, sync it, and return the file's size; if that fails, the file is as it was."""
    new = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        try:
            files.write_all(descriptor, line)
            os.fsync(descriptor)
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
    if new:
        files.sync(path.parent)
    return size + len(line)


def sweep(folder: Path) -> None:
    """Remove what writes that were cut off have left behind."""
    for path in folder.glob(f"*{_TEMPORARY}"):
        path.unlink()
