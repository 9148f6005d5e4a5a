"""A lock on a file that ends with its process, however that ends: nothing is left to clear."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pubswap_protocol.errors import InvalidSettings


class Held(Exception):
    """Another process holds the lock: its number, or "unknown"."""


def holder(path: Path) -> str | None:
    """The process that holds the lock, None if none does; leaves nothing behind."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        # Shared, and let go of at once: a process that starts now is kept out for an instant only.
        _flock(descriptor, fcntl.LOCK_SH, path)
    except BlockingIOError:
        return _number(descriptor)
    else:
        return None
    finally:
        os.close(descriptor)


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold the lock; raises Held if another process does, and InvalidSettings where none can."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _flock(descriptor, fcntl.LOCK_EX, path)
    except BlockingIOError:
        other = _number(descriptor)
        os.close(descriptor)
        raise Held(other) from None
    except InvalidSettings:
        os.close(descriptor)
        raise
    held = {descriptor}

    def let_go() -> None:
        # A forked child would hold the lock as well, and could outlive a process that was killed.
        while held:
            os.close(held.pop())

    os.register_at_fork(after_in_child=let_go)
    with suppress(OSError):  # the number is only for the message
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
