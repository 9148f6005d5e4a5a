"""Files that outlast a power cut (fsync, rename, fsync of the folder), and for their owner only."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from pubswap_protocol.errors import Conflict, InvalidSettings, NotSaved

_TEMPORARY = ".tmp"
_GROUP_AND_OTHERS = 0o077


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


def expanded(path: str | Path) -> Path:
    """A path in which `~` is a user's folder; raises InvalidSettings for one that is not known, and
    for what is no path.
    """
    if "\0" in str(path):
        raise InvalidSettings(f"{str(path)!r} is no path: it holds a NUL character.")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InvalidSettings(f"{path}: whose folder is that? No home is known for it.") from None


def require_vacant(out: Path) -> None:
    """Raises InvalidSettings if something is at `out` but an empty folder."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidSettings(f"{out} is there already: remove it, or choose another --out.")


@contextmanager
def whole_folder(out: Path, mode: int = 0o755) -> Iterator[Path]:
    """A folder that becomes `out` at the end: a kill leaves no half of it under that name.

    Raises NotSaved if nothing can be made beside `out`; Conflict if something is at `out` by then
    but an empty folder, which stays as it is.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise NotSaved(f"{out} cannot be made: {error.strerror}.") from None
    try:
        yield making
        making.chmod(mode)
        try:
            making.rename(out)
        except OSError as error:
            raise Conflict(f"{out} could not be made: {error.strerror}.") from None
        sync(out.parent)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until a file's bytes, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def syncing(descriptor: int) -> Iterator[None]:
    """Send a file's bytes to the disk while the block reads them; raises OSError at its end."""
    with ThreadPoolExecutor(1) as beside:
        synced = beside.submit(os.fsync, descriptor)
        yield
        synced.result()


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


def make_private(folder: Path) -> bool:
    """Make the folder for its owner only; returns whether it is, for one that was there is left.

    It may be the user's own, with other things in it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return not folder.stat().st_mode & _GROUP_AND_OTHERS


def keep_private(path: Path) -> None:
    """Take a folder or file of ours from everybody else, if there is one."""
    if path.exists() and path.stat().st_mode & _GROUP_AND_OTHERS:
        path.chmod(path.stat().st_mode & ~_GROUP_AND_OTHERS)


def private_folder(folder: Path) -> Path:
    """A folder of ours, new or not, for its owner only."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    keep_private(folder)
    return folder


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
                write_all(descriptor, piece)
        finally:
            os.close(descriptor)
        publish(temporary, path)
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
            write_all(descriptor, line)
            os.fsync(descriptor)
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
    if new:
        sync(path.parent)
    return size + len(line)


def sweep(folder: Path) -> None:
    """Remove what writes that were cut off have left behind."""
    for path in folder.glob(f"*{_TEMPORARY}"):
        path.unlink()
