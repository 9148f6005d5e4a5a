"""Long polls: a waiting request is an asyncio wait; no thread and no connection is held."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from pubswap_server.clock import steady

T = TypeVar("T")


class ChangeNotifier:
    """A bell for each run: it rings at every change of the run."""

    def __init__(self) -> None:
        self._events: dict[str, asyncio.Event] = {}
        self._closed = False

    def notify(self, run: str | None) -> None:
        """Wake all that wait for this run; None wakes those of every run."""
        for name in list(self._events) if run is None else [run]:
            event = self._events.pop(name, None)
            if event is not None:
                event.set()

    def close(self) -> None:
        """Wake everybody, and let nobody wait any more: the server is stopping."""
        self._closed = True
        self.notify(None)

    async def until(
        self,
        run: str,
        look: Callable[[], Awaitable[T]],
        holds: Callable[[T], bool],
        seconds: float,
    ) -> T:
        """What `look` finds: what holds, looking again at each ring, or the last when time is up.

        `seconds` are from now.
        """
        deadline = time.monotonic() + seconds
        while True:
            # Taken before looking, so that a change in between is not missed.
            event = self._events.setdefault(run, asyncio.Event())
            found = await look()
            left = deadline - time.monotonic()
            if holds(found) or left <= 0 or self._closed:
                return found
            try:
                await asyncio.wait_for(event.wait(), left)
            except TimeoutError:
                return await look()


class SingleFlight(Generic[T]):
    """One reading at a time for each key, shared by all that ask before it begins.

    Nobody gets what was read before it asked, so that an answer holds all that its asker has
    heard of, from whichever replica.
    """

    def __init__(self, read: Callable[[str], Awaitable[T]]) -> None:
        self._read = read
        self._next: dict[str, asyncio.Task[T]] = {}
        self._under_way: dict[str, asyncio.Task[T]] = {}

    async def get(self, key: str) -> T:
        """What a reading finds that begins after this call."""
        task = self._next.get(key)
        if task is None:
            task = self._next[key] = asyncio.create_task(self._after(key))
        # One asker that goes away does not end the reading of the others.
        return await asyncio.shield(task)

    async def _after(self, key: str) -> T:
        before = self._under_way.get(key)
        if before is not None:
            await asyncio.wait([before])
        self._under_way[key] = self._next.pop(key)
        try:
            return await self._read(key)
        finally:
            del self._under_way[key]


class ChangedRuns:
    """What has changed since the conductor last asked."""

    def __init__(self) -> None:
        self._runs: set[str] = set()
        self._all = False
        self._event = asyncio.Event()
        self.asked_at = steady()  # when the conductor came last

    def add(self, run: str | None) -> None:
        """Look at this run; None: at every one."""
        if run is None:
            self._all = True
        else:
            self._runs.add(run)
        self._event.set()

    async def take(self, seconds: float) -> set[str] | None:
        """The runs that changed, waiting for one; None, that is all, after `seconds` at most."""
        self.asked_at = steady()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)
        every, runs = self._all or not self._runs, self._runs
        self._all, self._runs = False, set()
        self._event.clear()
        return None if every else runs
