"""The folders that verifiers' processes write in, each named after the process that owns it."""

import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

_PREFIX = "pubswap-verifier-"


def make() -> Path:
    """A new empty folder; those of processes that were killed are removed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = path.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdecimal() and not _is_alive(int(owner)):
            remove(path)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))


def size(folder: Path | None) -> int:
    """The bytes of the files in it; very many if it cannot be walked."""
    if folder is None:
        return 0
    found = (Path(above, name) for above, _, names in os.walk(folder) for name in names)
    try:
        return sum(path.lstat().st_size for path in found)
    except (OSError, RecursionError):
        return sys.maxsize


def remove(folder: Path) -> None:
    """Remove it as far as possible: a verifier can make it deeper than Python can follow."""
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(folder, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # another user's, or no process's number
        return True
    return True
