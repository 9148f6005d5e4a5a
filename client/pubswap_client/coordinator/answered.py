"""Which requests a relay has answered: such a one may not come again."""

import threading
from pathlib import Path

from pubswap_protocol.files import write_whole

REMEMBERED = 100_000


class AnsweredRequests:
    """The names of the last requests that were answered, in a file; safe to use from threads."""

    def __init__(self, path: Path, most: int = REMEMBERED) -> None:
        """Read what an earlier process wrote; `most` to twice as many are remembered."""
        self._path, self._most, self._lock = path, most, threading.Lock()
        names = path.read_text(errors="replace").split() if path.exists() else []
        self._names = dict.fromkeys(names)  # in their order
        self._shorten()  # also for what a kill has left of a line

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str) -> None:
        """Remember a name, also after a kill."""
        with self._lock:
            self._names[name] = None
            if len(self._names) > 2 * self._most:
                self._shorten()
            else:
                with self._path.open("a") as file:
                    file.write(f"{name}\n")

    def _shorten(self) -> None:
        self._names = dict.fromkeys([*self._names][-self._most :])
        write_whole(self._path, "".join(f"{name}\n" for name in self._names).encode())
