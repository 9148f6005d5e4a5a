"""Turns of the event loop, for what becomes ready all at once.

When a round ends, a thousand long polls are answered and a thousand requests follow. Each is little
work, but all that is ready has its turn before the event loop looks at anything else again.
"""

import asyncio
from collections import deque

AT_ONCE = 8  # go on in each turn: some milliseconds


class Turns:
    """A queue of one event loop, of which a few go on in each turn of it."""

    def __init__(self) -> None:
        self._queue: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Wait for one's turn, behind all that wait already."""
        loop = asyncio.get_running_loop()
        if not self._queue:
            loop.call_soon(self._next)
        future = loop.create_future()
        self._queue.append(future)
        await future

    def _next(self) -> None:
        for _ in range(min(AT_ONCE, len(self._queue))):
            future = self._queue.popleft()
            if not future.done():  # who waits may have been cancelled
                future.set_result(None)
        if self._queue:
            asyncio.get_running_loop().call_soon(self._next)
