"""Wake-ups. A waiter is an asyncio task, and holds no thread and no database connection."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from pubswap_server.clock import steady

T = TypeVar("T")

AT_ONCE = 8  # waiters that go on in each turn: some milliseconds of work
POLL_SHARE = 0.05  # interval between polls, as a share of the time since a run's last change
LATEST_POLL_SECONDS = 10.0  # longest interval, and so the most that a deadline is noticed late
LATEST_RETRY_SECONDS = 60.0
TRIES = 3  # failed attempts at a run's next move before it counts as stalled


class LoopThrottle:
    """A queue from which a few waiters go on in each turn of the event loop.

    When a round ends, a thousand long polls are answered and a thousand requests follow. Each is
    little work, but the event loop runs everything that is ready before it looks for new events.
    """

    def __init__(self) -> None:
        self._queue: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Wait for a turn, behind all earlier waiters."""
        loop = asyncio.get_running_loop()
        if not self._queue:
            loop.call_soon(self._next)
        future = loop.create_future()
        self._queue.append(future)
        await future

    def _next(self) -> None:
        for _ in range(min(AT_ONCE, len(self._queue))):
            future = self._queue.popleft()
            if not future.done():  # the waiter may have been cancelled
                future.set_result(None)
        if self._queue:
            asyncio.get_running_loop().call_soon(self._next)


class PollSchedule:
    """Polling of runs that only time can move: the longer a run is unchanged, the rarer.

    A poll costs a few queries under the run's lock, and most runs wait for their members for hours.
    After each failed move the delay doubles, up to a minute.
    """

    def __init__(self, first_retry_seconds: float = 1.0) -> None:
        self._first_retry = first_retry_seconds
        self._runs: dict[str, tuple[float, float]] = {}  # unchanged since, and next poll
        self._failed: dict[str, tuple[int, float]] = {}  # failures since its last move, next try

    def changed(self, run: str | None) -> None:
        """Poll a run, or all runs for None, at the next tick."""
        if run is None:
            self._runs.clear()
        else:
            self._runs.pop(run, None)

    def due(self, runs: Iterable[str]) -> list[str]:
        """The runs to poll now, of the `runs` that time may move; all others are forgotten."""
        now, due_runs, schedule = time.monotonic(), [], {}
        for run in runs:
            since, following = self._runs.get(run, (now, now))
            _, retry = self._failed.get(run, (0, now))
            if max(following, retry) <= now:
                due_runs.append(run)
                following = now + min(LATEST_POLL_SECONDS, POLL_SHARE * (now - since))
            schedule[run] = since, following
        self._runs = schedule
        return due_runs

    def failed(self, run: str) -> bool:
        """Count a failure; returns whether the run has failed often enough to be stalled."""
        count = self._failed.get(run, (0, 0.0))[0] + 1
        wait = min(LATEST_RETRY_SECONDS, self._first_retry * 2 ** min(count, 16))
        self._failed[run] = count, time.monotonic() + wait
        return count >= TRIES

    def moved(self, run: str) -> None:
        self._failed.pop(run, None)


class ChangeNotifier:
    """Wake-ups by run: the conductor at changes made here, members at changes they wait for."""

    def __init__(self, first_retry_seconds: float = 1.0) -> None:
        self.polls = PollSchedule(first_retry_seconds)
        self._turns = LoopThrottle()
        self._awaited: dict[str, asyncio.Event] = {}
        self.closed = False
        self._changed: set[str] = set()
        self._any_changed = asyncio.Event()
        self.polled_at = steady()  # when the conductor last asked for changes

    def notify(self, run: str, awaited: bool = True) -> None:
        """Announce a change that this process has committed."""
        self.heard(run, awaited)
        self._changed.add(run)
        self._any_changed.set()

    def heard(self, run: str | None, awaited: bool) -> None:
        """Announce a change that another process has committed; None stands for any run.

        That process's conductor moves the run forward. If it dies, ours does so at the next tick.
        """
        self.polls.changed(run)
        if awaited:
            self._wake_members(run)

    def _wake_members(self, run: str | None) -> None:
        for name in list(self._awaited) if run is None else [run]:
            if event := self._awaited.pop(name, None):
                event.set()

    def close(self) -> None:
        """Wake all members and let none wait any more, because the server is stopping."""
        self.closed = True
        self._wake_members(None)

    async def until(
        self, run: str, read: Callable[[], Awaitable[T]], holds: Callable[[T], bool], seconds: float
    ) -> T:
        """Read again at each change of the run until `holds(result)` or `seconds` have passed."""
        deadline = time.monotonic() + seconds
        while True:
            # Before reading, so that a change in between is not missed.
            event = self._awaited.setdefault(run, asyncio.Event())
            result = await read()
            await self._turns.take()  # among all who shared this read
            remaining = deadline - time.monotonic()
            if holds(result) or remaining <= 0 or self.closed:
                return result
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), remaining)
            await self._turns.take()

    async def changed_runs(self, seconds: float) -> set[str]:
        """The runs changed here since the last call; waits at most `seconds` for one."""
        self.polled_at = steady()
        # wait_for would lose a cancellation that arrives together with a change.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._any_changed.wait()
        changed, self._changed = self._changed, set()
        self._any_changed.clear()
        return changed


class SingleFlight(Generic[T]):
    """One read at a time for each key, shared by all callers that ask before it begins.

    No caller gets a result that is older than its call. So the result contains everything that the
    caller already knows, from whichever replica.
    """

    def __init__(self, read: Callable[[str], Awaitable[T]]) -> None:
        self._read = read
        self._next: dict[str, asyncio.Task[T]] = {}
        self._under_way: dict[str, asyncio.Task[T]] = {}

    async def get(self, key: str) -> T:
        """The result of a read that begins after this call."""
        task = self._next.get(key)
        if task is None:
            task = self._next[key] = asyncio.create_task(self._read_next(key))
        # A caller that is cancelled must not cancel the read for the others.
        return await asyncio.shield(task)

    async def _read_next(self, key: str) -> T:
        previous = self._under_way.get(key)
        if previous is not None:
            await asyncio.wait([previous])
        self._under_way[key] = self._next.pop(key)
        try:
            return await self._read(key)
        finally:
            del self._under_way[key]
