"""Progress of the runs: bars on a terminal, lines elsewhere."""

import threading
import time
from collections.abc import Container, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from pubswap_protocol.command_line.amounts import duration_text
from pubswap_protocol.command_line.progress_bar import LogThrottle, each_second, left_text
from pubswap_simulation.job import JobReport, RunSpec
from pubswap_simulation.results import read_result


@dataclass
class _Shown:
    """A run that is under way."""

    title: str
    steps: int  # in all
    bar: TaskID
    report: JobReport
    started: float
    throttle: LogThrottle = field(default_factory=LogThrottle)
    # The first time that it was ready to train in this process, and its steps then.
    ready: tuple[float, int] | None = None

    def left(self) -> str:
        """The time left, at the pace of this process after loading; evaluations count."""
        if self.ready is None:
            return ""
        since, before = self.ready
        done = self.report.steps
        return left_text(time.monotonic() - since, done - before, self.steps - done)

    def figures(self) -> str:
        report = self.report
        pairs = (("reward", report.reward), ("pass@1", report.score))
        shown = [f"{name} {figure:.3f}" for name, figure in pairs if figure is not None]
        return "  ".join(filter(None, [*shown, report.doing, self.left()]))

    def line(self) -> str:
        elapsed = duration_text(time.monotonic() - self.started)
        position = f"step {self.report.steps}/{self.steps}"
        return "  ".join(filter(None, [self.title, position, elapsed, self.figures()]))


class SweepDisplay:
    """A context manager that shows the runs' progress; its methods are called from any thread.

    Without a terminal it prints a line for each new pass@1, and between them at most one every 15 s
    and at least one a minute for each run.
    """

    def __init__(self, console: Console, runs: int) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            console=console,
            disable=not console.is_terminal,
        )
        self._lock = threading.Lock()
        self._shown: dict[str, _Shown] = {}
        self._all: TaskID | None = None
        self._ended = 0
        if runs > 1:
            self._all = self._progress.add_task("runs", total=runs, figures="")

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._progress)
            if not self._console.is_terminal:
                stack.enter_context(each_second(self._print_due))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def update(self, spec: RunSpec, report: JobReport) -> None:
        """Show a run's progress."""
        with self._lock:
            if spec.key not in self._shown:
                total = spec.job.steps
                bar = self._progress.add_task(spec.title, total=total, figures="")
                self._shown[spec.key] = _Shown(spec.title, total, bar, report, time.monotonic())
            run = self._shown[spec.key]
            before, run.report = run.report, report
            if run.ready is None and not report.doing:
                run.ready = time.monotonic(), report.steps
            self._progress.update(run.bar, completed=report.steps, figures=run.figures())
            if report.score != before.score and not self._console.is_terminal:
                self._print(run)

    def _print_due(self) -> None:
        with self._lock:
            for run in self._shown.values():
                if run.throttle.due(run.report):
                    self._print(run)

    def _print(self, run: _Shown) -> None:
        self._console.print(run.line(), soft_wrap=True, highlight=False)
        run.throttle.printed(run.report)

    def finish(self, spec: RunSpec, outcome: str) -> None:
        """Print a run's outcome in place of its bar."""
        self._ended += 1
        with self._lock:
            if (run := self._shown.pop(spec.key, None)) is not None:
                self._progress.remove_task(run.bar)
        if self._all is not None:
            self._progress.update(self._all, completed=self._ended)
        self._console.print(f"{spec.title}: {outcome}", soft_wrap=True, highlight=False)


def sweep_table(specs: Iterable[RunSpec], failed: Container[str]) -> Table:
    """The runs of a sweep with their pass@1; `failed` holds keys."""
    table = Table("run", "base", "final", "best", "seconds")
    for spec in specs:
        if spec.done:
            result = read_result(spec.folder)
            scores = (result.base, result.final, result.best)
            table.add_row(
                spec.title, *(f"{score:.3f}" for score in scores), f"{result.seconds:.0f}"
            )
        else:
            failing = spec.key in failed
            table.add_row(spec.title, Text("failed", "red") if failing else Text("to do", "dim"))
    return table
