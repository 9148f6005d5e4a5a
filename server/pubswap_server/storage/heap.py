"""The C library's heap, kept to one arena. Elsewhere than with glibc nothing here does anything."""

import ctypes
from contextlib import suppress

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def keep_one_arena() -> None:
    """Let threads share one arena: each one's own would keep what it once held."""
    _set({_M_ARENA_MAX: 1})


def keep_heap_small() -> None:
    """Let threads share one arena, and give large pieces back to the system at once.

    glibc's own threshold for that grows with what it has seen.
    """
    _set({_M_ARENA_MAX: 1, _M_MMAP_THRESHOLD: 1 << 20, _M_TRIM_THRESHOLD: 1 << 20})


def _set(options: dict[int, int]) -> None:
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for option, value in options.items():
            library.mallopt(option, value)
