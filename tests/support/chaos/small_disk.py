"""A small tmpfs that tests can fill: a real disk that is really full."""

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
        """Free space in bytes."""
        stats = os.statvfs(self.folder)
        return stats.f_bavail * stats.f_frsize

    def fill(self, leave: int = 0) -> None:
        """Fill the disk with another file, leaving about `leave` bytes."""
        with self._eater.open("ab") as file, contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, file.tell() + max(0, self.free() - leave))
        with self._eater.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while self.free() > leave:
                file.write(bytes(min(_PIECE, self.free() - leave)))

    def make_room(self) -> None:
        """Remove the other file."""
        self._eater.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[SmallDisk]:
    """A disk of `size` bytes, mounted until the end of the block."""
    folder.mkdir(parents=True)
    _mount(folder, size)
    try:
        yield SmallDisk(folder)
    finally:
        # Lazily, because a process killed a moment ago may not be gone yet.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """A folder on a disk that nobody can write to, not even root."""
    with small_disk(folder, 1 << 20):
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        yield folder


def missing() -> str | None:
    """Why no small disk can be made here, or None if it can."""
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
