"""The C library's heap, kept to one arena."""

import ctypes
from contextlib import suppress

_M_ARENA_MAX = -8


def keep_heap_small() -> None:
    """Let worker threads share one arena: each one's own would keep the bodies it once held.

    Measured on 4 adapters of 140 MB: 100 MB of anonymous memory at the peak instead of 236.
    Elsewhere than with glibc this does nothing.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
