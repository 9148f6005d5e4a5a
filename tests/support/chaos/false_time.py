"""A wall clock that can be set: libfaketime under a process, which reads the offset from a file."""

import sys
from collections.abc import Mapping
from pathlib import Path

_PLACES = (
    "/usr/lib/*-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib*/faketime/libfaketimeMT.so.1",
    "/usr/local/lib/faketime/libfaketimeMT.so.1",
)


class FalseTime:
    """The wall clock of processes with `env`; what only ever counts up is as it is."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump(0)

    @property
    def env(self) -> Mapping[str, str]:
        """What a process needs, from its start on."""
        return {
            "LD_PRELOAD": str(_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
            # It takes Python's waits for its lock to be on another clock than they are, and they
            # all end at once.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def jump(self, seconds: int) -> None:
        """From now on the clock is off by so much."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}")
        new.replace(self._file)


def missing() -> str | None:
    """Why no clock can be set here."""
    return None if _library() else "libfaketime is not installed (Debian: faketime)"


def _library() -> Path | None:
    if sys.platform != "linux":
        return None
    found = (path for place in _PLACES for path in Path("/").glob(place.lstrip("/")))
    return next(found, None)
