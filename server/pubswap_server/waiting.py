"""Long polls: a waiting request is an asyncio wait; no thread and no connection is held."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class Bells:
    """A bell for each run: it rings at every change of the run."""

    def __init__(self) -> None:
        self._events: dict[str, asyncio.Event] = {}
        self._closed = False

    def ring(self, run: str) -> None:
        """Wake all that wait for this run."""
        event = self._events.pop(run, None)
        if event is not None:
            event.set()

    def close(self) -> None:
        """Wake everybody, and let nobody wait any more: the server is stopping."""
        self._closed = True
        for run in list(self._events):
            self.ring(run)

    async def until(
        self, run: str, look: Callable[[], Awaitable[T | None]], seconds: float
    ) -> T | None:
        """What `look` finds, looking again at each ring; None when `seconds` have passed."""
        deadline = time.monotonic() + seconds
        while True:
            # Taken before looking, so that a change in between is not missed.
            event = self._events.setdefault(run, asyncio.Event())
            found = await look()
            left = deadline - time.monotonic()
            if found is not None or left <= 0 or self._closed:
                return found
            try:
                await asyncio.wait_for(event.wait(), left)
            except TimeoutError:
                return await look()
