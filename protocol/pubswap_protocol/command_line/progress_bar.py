"""rich's progress display for long commands, on terminals only."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

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
