"""The lock on a state folder: one daemon at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pubswap_protocol.command_line import locking
from pubswap_protocol.errors import StateInUse


def holder(state: Path) -> str | None:
    """The process that holds the folder's lock, or None. Creates no file."""
    return locking.holder(state / "lock")


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """Hold the folder's lock. Raises StateInUse if another process holds it."""
    try:
        with locking.lock(state / "lock"):
            yield
    except locking.LockHeld as other:
        raise StateInUse(
            f"{state} is in use by another daemon (process {other}). Stop that one, or give "
            "this one its own state folder with --state."
        ) from None
