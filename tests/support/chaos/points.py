"""Named points in a client daemon's life, traced to a file; at one of them it kills itself.

They are wrapped around the product's functions from outside. A point's name begins with its place:
`start`, `1 begin`, `1.2` (round 1, local step 2), `1 end`, `between rounds`.
"""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = (
    *("task", "blob", "public_step_prompts", "submit_responses", "exchanged"),
    *("put_blob", "submit_update"),
)
WAITING_SECONDS = 0.5
JOURNAL = "progress"  # its folder in the state folder


class Points(threading.local):
    """Writes the name of each point passed; the process is killed at the `last` one.

    Each thread has a position of its own, because a step is saved to disk while the next one runs.
    """

    position = "start"
    saving = ""
    pieces = 0  # left to write until half of the file is written

    def __init__(self, trace: Path, last: str | None) -> None:
        self._last = last
        self._trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def hit(self, what: str) -> None:
        """Pass a point, or die there."""
        name = f"{self.position} {what}"
        os.write(self._trace, f"{name}\n".encode())
        if name == self._last:
            os.kill(os.getpid(), signal.SIGKILL)

    def hit_at(self, position: str, what: str) -> None:
        """Pass a point at another thread's position."""
        self.position = position
        self.hit(what)

    def around(self, owner: Any, name: str, what: str = "") -> None:
        """Put a point before and one after a function."""
        call = getattr(owner, name)
        what = what or name.strip("_")

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.hit(f"{what} before")
            result = call(*args, **kwargs)
            self.hit(f"{what} after")
            return result

        setattr(owner, name, wrapped)

    def at(
        self, owner: Any, name: str, position_of: Callable[..., str], on_return: str | None = None
    ) -> None:
        """Set the position when a method is called, and to `on_return` on its return."""
        call = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.position = position_of(*args)
            result = call(*args, **kwargs)
            self.position = on_return or self.position
            return result

        setattr(owner, name, wrapped)


def install(trace: Path, last: str | None) -> None:
    """Wrap this process's client in points."""
    from pubswap_client.coordinator.client import CoordinatorClient
    from pubswap_client.daemon.heartbeats import Heartbeats
    from pubswap_client.daemon.round import LocalRound
    from pubswap_client.rollout.transformers_engine import TransformersEngine
    from pubswap_client.training.trainer import LocalTrainer

    points = Points(trace, last)
    points.at(LocalRound, "train", lambda self: f"{self.key.round} begin")
    for name in ("step", "keep"):
        points.at(LocalRound, name, lambda self, step, *_: f"{self.key.round}.{step}")
    points.at(LocalRound, "hand_in", lambda self: f"{self.key.round} end", "between rounds")
    for name in CALLS:
        points.around(CoordinatorClient, name)
    points.around(Heartbeats, "step", "heartbeat")
    points.around(TransformersEngine, "generate")
    points.around(LocalTrainer, "update_policy", "update")
    _while_waiting(points, CoordinatorClient)
    _inside_saves(points)


def _while_waiting(points: Points, client: Any) -> None:
    """Put a point half a second into the wait for the others' responses."""
    call = client.exchanged

    def exchanged(*args: Any, **kwargs: Any) -> bytes:
        timer = threading.Timer(
            WAITING_SECONDS, points.hit_at, [points.position, "exchanged waiting"]
        )
        timer.start()
        try:
            responses: bytes = call(*args, **kwargs)
            return responses
        finally:
            timer.cancel()

    client.exchanged = exchanged


def _inside_saves(points: Points) -> None:
    """Put points before a save, at half its bytes, before and after its rename, and after it."""
    from pubswap_client.state import journal
    from pubswap_protocol import files

    write_whole, write_all = journal.write_whole, files.write_all
    replace, sync = Path.replace, files.sync

    def saving(path: Path, *pieces: bytes | memoryview) -> None:
        points.saving = f"save {path.stem.rpartition('-')[2]}"
        points.pieces = len(pieces) // 2
        points.hit(f"{points.saving} before")
        write_whole(path, *pieces)
        points.hit(f"{points.saving} after")

    def filling(descriptor: int, data: memoryview) -> None:
        write_all(descriptor, data[: len(data) // 2])
        points.pieces -= 1
        if points.pieces == 0:
            points.hit(f"{points.saving} half")
        write_all(descriptor, data[len(data) // 2 :])

    # Only the journal's: other threads replace the ledger and the status, too.
    def replacing(self: Path, target: Path) -> Path:
        if self.parent.name == JOURNAL:
            points.hit(f"{points.saving} written")
        return replace(self, target)

    def syncing(path: Path) -> None:
        if path.is_dir() and path.name == JOURNAL:
            points.hit(f"{points.saving} renamed")
        sync(path)

    journal.write_whole = saving  # type: ignore[assignment]
    files.write_all = filling
    files.sync = syncing
    Path.replace = replacing  # type: ignore[assignment,method-assign]
