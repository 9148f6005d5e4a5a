"""Durable files (fsync, rename, fsync of the folder), and files for their owner only."""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from pubswap_protocol.errors import Conflict, InvalidSettings, NotSaved

_TEMPORARY = ".tmp"
_GROUP_AND_OTHERS = 0o077
# How file systems refuse what they cannot do.
_NOT_SUPPORTED = frozenset({errno.EINVAL, errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.ENOTTY})
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "let this user write there"),  # as after sudo
    errno.EROFS: "make that disk writable",
    errno.EISDIR: "move the folder of that name away",
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "move the file away that is in its path"),
}


def publish(temporary: Path, path: Path) -> None:
    """Durably rename a complete file; both paths must be on one file system."""
    sync(temporary)
    new = not path.parent.exists()
    if new:
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary.replace(path)
    sync(path.parent)
    if new:
        sync(path.parent.parent)


def expanded(path: str | Path) -> Path:
    """A path with `~` expanded; raises InvalidSettings for an unknown user or an invalid path."""
    if "\0" in str(path):
        raise InvalidSettings(f"{str(path)!r} is not a path: it contains a NUL character.")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InvalidSettings(f"{path}: the home folder of this user is not known.") from None


def require_vacant(out: Path) -> None:
    """Raises InvalidSettings if `out` exists and is not an empty folder."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidSettings(f"{out} already exists: remove it, or name another.")


@contextmanager
def whole_folder(out: Path, mode: int = 0o755) -> Iterator[Path]:
    """Create `out` atomically: yields a temporary folder beside it, renamed to `out` at the end.

    Raises NotSaved if nothing can be created beside `out`, and Conflict if `out` exists by the end
    and is not an empty folder; it then stays as it is.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise NotSaved(f"{out} cannot be created: {error.strerror}.") from None
    try:
        yield making
        making.chmod(mode)
        try:
            making.rename(out)
        except OSError as error:
            raise Conflict(f"{out} could not be created: {error.strerror}.") from None
        sync(out.parent)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def flush(descriptor: int) -> None:
    """Wait until a file's bytes are on the disk. All durable writes come here.

    macOS's fsync leaves them in the drive's cache, which a power cut empties.
    """
    full: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(descriptor, full)
            return
        except OSError as error:  # network file systems do not know it
            if error.errno not in _NOT_SUPPORTED:
                raise
    os.fsync(descriptor)


def sync(path: Path) -> None:
    """Wait until a file's bytes, or the names in a folder, are on the disk.

    A file system that cannot sync a folder, as some shared folders, writes its names as it likes.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        flush(descriptor)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


@contextmanager
def syncing(descriptor: int) -> Iterator[None]:
    """Sync a file while the block runs, which may read it; raises OSError at the block's end."""
    with ThreadPoolExecutor(1) as beside:
        synced = beside.submit(flush, descriptor)
        yield
        synced.result()


def write_all(descriptor: int, data: bytes | bytearray | memoryview) -> None:
    """Write all of `data`; a single system call may write only a part."""
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def write_pieces(descriptor: int, pieces: Sequence[bytes]) -> None:
    """Write pieces one after another, at most 1,024, without joining them first."""
    written = os.writev(descriptor, pieces)
    if written < sum(map(len, pieces)):  # the disk is full, or a signal interrupted the call
        write_all(descriptor, memoryview(b"".join(pieces))[written:])


def make_private(folder: Path) -> bool:
    """Create a folder for its owner only; returns whether it is private.

    An existing folder keeps its mode, because it may be the user's own, with other files in it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return not folder.stat().st_mode & _GROUP_AND_OTHERS


def keep_private(path: Path) -> None:
    """Remove the permissions of group and others from a folder or file, if it exists."""
    if path.exists() and path.stat().st_mode & _GROUP_AND_OTHERS:
        path.chmod(path.stat().st_mode & ~_GROUP_AND_OTHERS)


def private_folder(folder: Path) -> Path:
    """Create a folder of PubSwap's own, or take an existing one, and make it private."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    keep_private(folder)
    return folder


def write_whole(path: Path, *pieces: bytes | memoryview) -> None:
    """Replace a file atomically with the concatenated pieces, mode 0600.

    After a crash at any moment it is the old file or the new one. Raises NotSaved, naming the path
    and the bytes needed, if it cannot be written; the old file is then unchanged.
    """
    try:
        write_stream(path, pieces)
    except OSError as error:
        size = sum(len(piece) for piece in pieces)
        raise NotSaved(
            f"{path} could not be saved, which takes {size} bytes: {error.strerror}. "
            f"The previous file is unchanged; {remedy(error)} and start again."
        ) from None


def write_stream(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """As `write_whole`, of pieces that need not be in memory at once; raises OSError."""
    temporary = path.with_name(path.name + _TEMPORARY)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for piece in pieces:
                write_all(descriptor, piece)
        finally:
            os.close(descriptor)
        publish(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def remedy(error: OSError) -> str:
    """Advice for a file that could not be written, as an imperative."""
    return _REMEDIES.get(error.errno or 0, "correct that")


def create_durably(path: Path, data: bytes) -> None:
    """Create a file atomically, mode 0600; an existing one stays as it is."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name) as file:
        write_all(file.fileno(), data)  # unbuffered, or closing it would fail on a full disk
        flush(file.fileno())
        with suppress(FileExistsError):
            try:
                os.link(file.name, path)
            except OSError as error:
                if error.errno not in _NOT_SUPPORTED:
                    raise
                _create(path, data)  # FAT and some network file systems have no hard links
    sync(path.parent)


def _create(path: Path, data: bytes) -> None:
    """Create a file; a reader may see a part of it, and only a crash leaves a part."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        write_all(descriptor, data)
        flush(descriptor)
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(descriptor)


def append_durably(path: Path, line: bytes) -> int:
    """Append a line, sync it, and return the file's size; on failure the file is unchanged."""
    new = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        try:
            write_all(descriptor, line)
            flush(descriptor)
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
    """Remove temporary files left behind by interrupted writes."""
    for path in folder.glob(f"*{_TEMPORARY}"):
        path.unlink()
