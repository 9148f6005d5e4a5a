"""rich's progress display for long commands on terminals, and lines of progress elsewhere."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from pubswap_protocol.command_line.amounts import duration_text

T = TypeVar("T")


def progress_bar(console: Console | None = None) -> Progress:
    """A display that disappears at the end, by default on stderr; disabled without a terminal."""
    console = console or Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def next_stage(progress: Progress, description: str, total: int | None = None) -> TaskID:
    """Show one task in place of earlier ones; without a terminal, print a line instead."""
    for task in progress.task_ids:
        progress.remove_task(task)
    if progress.disable:
        progress.console.print(f"{description} ...", highlight=False, soft_wrap=True)
    return progress.add_task(description, total=total)


def tracked(progress: Progress, description: str, items: Sequence[T]) -> Iterator[T]:
    """Iterate over the items as one stage."""
    task = next_stage(progress, description, len(items))
    for item in items:
        yield item
        progress.advance(task)


NEWS_SECONDS, SAME_SECONDS = 15.0, 60.0


class LogThrottle:
    """Limits the lines of progress in a file or log: news soon, the same again later."""

    def __init__(self, news: float = NEWS_SECONDS, same: float = SAME_SECONDS) -> None:
        """Seconds after the last line until news, or the same again, is worth another."""
        self._news, self._same = news, same
        self._last = -math.inf
        self._shown: object = None

    def due(self, shown: object) -> bool:
        """Whether to print a line that shows this now."""
        seconds = self._same if shown == self._shown else self._news
        return time.monotonic() - self._last >= seconds

    def printed(self, shown: object) -> None:
        """A line was printed that shows this."""
        self._last, self._shown = time.monotonic(), shown


@contextmanager
def each_second(look: Callable[[], None]) -> Iterator[None]:
    """Call `look` each second, from a thread, until the block ends."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(1.0):
            look()

    thread = threading.Thread(target=work, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def left_text(seconds: float, done: int, remaining: int) -> str:
    """Such as `about 34 min left`, at the pace so far; empty if nothing is done, or all is."""
    return f"about {duration_text(seconds / done * remaining)} left" if done and remaining else ""
