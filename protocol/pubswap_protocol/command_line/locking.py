"""File locks, which end with their process, however that ends, so they never need clearing."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pubswap_protocol.errors import InvalidSettings


class LockHeld(Exception):
    """Another process holds the lock; the argument is its process id, or "unknown"."""


@contextmanager
def waiting(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold a file's lock for a moment, waiting for others; a shared one keeps out no other such.

    A shared lock only reads the file, which must exist in a folder that cannot be written to.
    """
    access = os.O_RDONLY if shared else os.O_RDWR  # NFS demands the latter for an exclusive lock
    descriptor = os.open(path, access | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def take(descriptor: int) -> None:
    """Lock an open file until it is closed; raises BlockingIOError if another holds its lock."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def holder(path: Path) -> str | None:
    """The id of the process that holds the lock, or None; leaves nothing behind."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        # A shared lock, released at once, keeps a starting process out for only an instant.
        _flock(descriptor, fcntl.LOCK_SH, path)
    except BlockingIOError:
        return _number(descriptor)
    else:
        return None
    finally:
        os.close(descriptor)


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold the lock; raises LockHeld if another process does, InvalidSettings if locking fails."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _flock(descriptor, fcntl.LOCK_EX, path)
    except BlockingIOError:
        other = _number(descriptor)
        os.close(descriptor)
        raise LockHeld(other) from None
    except InvalidSettings:
        os.close(descriptor)
        raise
    held = {descriptor}

    def let_go() -> None:
        # A forked child would also hold the lock, and could outlive its parent if that is killed.
        while held:
            os.close(held.pop())

    os.register_at_fork(after_in_child=let_go)
    with suppress(OSError):  # the process id is only for the message
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
    try:
        yield
    finally:
        let_go()


def _flock(descriptor: int, how: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        raise InvalidSettings(
            f"{path} cannot be locked ({error.strerror}): choose a folder on a file system with "
            "locks, or have this one mounted with them (Lustre: `-o flock`)."
        ) from None


def _number(descriptor: int) -> str:
    return os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
