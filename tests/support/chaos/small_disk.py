"""A small tmpfs that can be filled: a real disk that is really full."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PIECE = 1 << 16


class SmallDisk:
    """A folder on a disk of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._eater = folder / "eaten-by-somebody-else"

    def free(self) -> int:
        """Bytes that are left."""
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def fill(self, leave: int = 0) -> None:
        """Another file takes the room, but for about `leave` bytes."""
        with self._eater.open("ab") as file, contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, file.tell() + max(0, self.free() - leave))
        with self._eater.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while self.free() > leave:
                file.write(bytes(min(_PIECE, self.free() - leave)))

    def make_room(self) -> None:
        """The other file is gone."""
        self._eater.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[SmallDisk]:
    """A disk of `size` bytes, mounted until the end of the block."""
    folder.mkdir(parents=True)
    _mount(folder, size)
    try:
        yield SmallDisk(folder)
    finally:
        # Lazily: a process that was killed a moment ago may not be gone yet.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """A folder on a disk that takes no writing from anybody, root neither."""
    with small_disk(folder, 1 << 20):
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        yield folder


def missing() -> str | None:
    """Why no small disk can be made here."""
    if sys.platform != "linux" or shutil.which("mount") is None:
        return "there is no mount command"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with small_disk(Path(folder) / "disk", 1 << 20):
                return None
        except subprocess.CalledProcessError:
            return "only root may mount a tmpfs"


def _mount(folder: Path, size: int) -> None:
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
