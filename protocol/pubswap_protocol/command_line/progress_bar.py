"""rich's progress display for commands that take long, on a terminal only."""

from collections.abc import Iterator, Sequence
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

T = TypeVar("T")


def progress_bar(console: Console | None = None) -> Progress:
    """A display that is gone in the end, on stderr unless said; no terminal shows it."""
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
    """Show one task in place of those before it; a log has a line of it instead."""
    for task in progress.task_ids:
        progress.remove_task(task)
    if progress.disable:
        progress.console.print(f"{description} ...", highlight=False, soft_wrap=True)
    return progress.add_task(description, total=total)


def each_of(progress: Progress, description: str, items: Sequence[T]) -> Iterator[T]:
    """Go through the items as one stage."""
    task = next_stage(progress, description, len(items))
    for item in items:
        yield item
        progress.advance(task)
