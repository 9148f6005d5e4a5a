"""Progress of the runs: bars on a terminal, a line for each evaluation elsewhere."""

from collections.abc import Container, Iterable
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from pubswap_simulation.job import RunSpec
from pubswap_simulation.results import read_result

# Steps of one run come in bursts, one from each client.
_SPEED_SECONDS = 300.0


class SweepDisplay:
    """A context manager that shows the runs' progress; its methods are called from any thread."""

    def __init__(self, console: Console, runs: int) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[score]}"),
            console=console,
            speed_estimate_period=_SPEED_SECONDS,
            disable=not console.is_terminal,
        )
        self._bars: dict[str, TaskID] = {}
        self._scores: dict[str, float | None] = {}
        self._all: TaskID | None = None
        self._ended = 0
        if runs > 1:
            self._all = self._progress.add_task("runs", total=runs, score="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, spec: RunSpec, steps: int, score: float | None) -> None:
        """Show the local steps made so far, over all clients, and the last pass@1."""
        shown = "" if score is None else f"pass@1 {score:.3f}"
        if spec.key not in self._bars:
            # Start where an earlier process stopped, so that its steps do not count as speed.
            self._bars[spec.key] = self._progress.add_task(
                spec.title, total=spec.job.steps, completed=steps, score=shown
            )
        self._progress.update(self._bars[spec.key], completed=steps, score=shown)
        if score != self._scores.get(spec.key) and not self._console.is_terminal:
            self._console.print(
                f"{spec.title}  step {steps}/{spec.job.steps}  {shown}", soft_wrap=True
            )
        self._scores[spec.key] = score

    def finish(self, spec: RunSpec, outcome: str) -> None:
        """Print a run's outcome in place of its bar."""
        self._ended += 1
        if spec.key in self._bars:
            self._progress.remove_task(self._bars.pop(spec.key))
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
