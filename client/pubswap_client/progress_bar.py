"""A bar for work that takes minutes, on a terminal only."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function that says how much more is done, of `total`."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.advance(task, done)


T = TypeVar("T")

_MANY = 20


class Display:
    """One line that is replaced, with a bar for what can be counted; else plain lines."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._progress.stop()

    def tell(self, what: str, total: int | None = None) -> None:
        """Something else begins; of `total` parts, if they are counted."""
        if self._console.is_terminal:
            # A task that has had a total keeps it; a new one has none.
            self._progress.remove_task(self._task)
            self._task = self._progress.add_task(what, total=total)
        else:
            self._console.print(f"{what} ...", highlight=False, soft_wrap=True)

    def track(self, items: Iterable[T], what: str, total: int) -> Iterator[T]:
        """The items, of which there are `total`; few are not worth a bar."""
        if total < _MANY:
            yield from items
            return
        self.tell(what, total)
        for item in items:
            yield item
            self._progress.advance(self._task)
