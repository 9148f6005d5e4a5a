"""Files of the state folder: written whole or not at all, and for their owner only."""

import os
from contextlib import suppress
from pathlib import Path

from pubswap_protocol.errors import NotSaved

_TEMPORARY = ".tmp"


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Replace a file, mode 0600; after a crash at any moment it is the old one or the new one.

    Raises NotSaved, naming the path and the bytes needed, if the disk does not take it; the old
    file is then as it was.
    """
    temporary = path.with_name(path.name + _TEMPORARY)
    try:
        _write(temporary, data)
        temporary.replace(path)
        # The rename itself lives in the folder, and is lost with the power unless that is synced.
        sync_folder(path.parent)
    except OSError as error:
        raise NotSaved(
            f"{path} could not be saved, which takes {len(data)} bytes: {error.strerror}. "
            "What was saved before is untouched; make room and start again."
        ) from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder outlast a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Remove what writes that were cut off have left behind."""
    for path in folder.glob(f"*{_TEMPORARY}"):
        path.unlink()


def _write(path: Path, data: bytes | memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        fill(descriptor, memoryview(data))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fill(descriptor: int, data: memoryview) -> None:
    """Write all of `data`; one call of the system may take less of it."""
    while data:
        data = data[os.write(descriptor, data) :]
