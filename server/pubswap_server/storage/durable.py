"""Files that outlast a power cut: fsync of the file, rename, fsync of the folder, in this order."""

import os
from pathlib import Path


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
