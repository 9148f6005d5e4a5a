"""The runs that the conductor is to look at."""

import asyncio
import contextlib

from pubswap_server.clock import steady


class Work:
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
