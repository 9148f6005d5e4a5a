"""The memory for bodies under way, up or down, shared among them: the fewer, the larger pieces."""

from collections.abc import Iterator
from contextlib import contextmanager

ROOM = 4 << 20  # bytes of all bodies in this process together; of each, several pieces are held
LEAST = 64 << 10  # bytes; each piece costs a turn of a thread

_bodies = 0


@contextmanager
def body_under_way() -> Iterator[None]:
    """Count a body while it is being sent or received."""
    global _bodies
    _bodies += 1
    try:
        yield
    finally:
        _bodies -= 1


def piece_bytes() -> int:
    """How many bytes of each body to read or write at a time."""
    return max(LEAST, ROOM // max(1, _bodies))
