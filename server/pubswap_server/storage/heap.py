"""The C library's heap, kept to one arena."""

import ctypes
from contextlib import suppress

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def keep_heap_small() -> None:
    """Let worker threads share one arena: each one's own would keep the bodies it once held.

    Large pieces are given back to the system at once: glibc's own threshold grows with what it has
    seen. Elsewhere than with glibc this does nothing.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_ARENA_MAX, 1)
        library.mallopt(_M_MMAP_THRESHOLD, 1 << 20)
        library.mallopt(_M_TRIM_THRESHOLD, 1 << 20)
