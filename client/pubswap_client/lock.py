"""The lock on a state folder: one daemon at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pubswap_protocol.errors import StateInUse


def holder(state: Path) -> str | None:
    """The process that holds the folder's lock, None if none does; leaves nothing behind."""
    try:
        descriptor = os.open(state / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        # Shared, and let go of at once: a daemon that starts now is kept out for an instant only.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _number(descriptor)
    else:
        return None
    finally:
        os.close(descriptor)


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """Hold the folder's lock; raises StateInUse if another process does.

    The kernel lets go of it when the process ends, however it ends: nothing is left to clear.
    """
    path = state / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = _number(descriptor)
        os.close(descriptor)
        raise StateInUse(
            f"{state} is in use by another daemon (process {other}). Stop that one, or give "
            "this one a state folder of its own with --state."
        ) from None
    held = {descriptor}

    def let_go() -> None:
        # A forked child would hold the lock as well, and could outlive a daemon that was killed.
        while held:
            os.close(held.pop())

    os.register_at_fork(after_in_child=let_go)
    with suppress(OSError):  # the number is only for the message above
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
    try:
        yield
    finally:
        let_go()


def _number(descriptor: int) -> str:
    return os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
