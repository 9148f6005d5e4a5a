"""How far the runs are: bars on a terminal, a line for each evaluation elsewhere."""

from collections.abc import Container, Iterable, Sequence
from types import TracebackType
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

from pubswap_simulation.order import RunSpec
from pubswap_simulation.results import RESULT, Result

# Steps of one run come in bursts, one from each client.
_SPEED_SECONDS = 300.0


class SweepDisplay:
    """Shows runs as they go on; a context manager. Its methods are called from any thread."""

    def __init__(self, console: Console, runs: int) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def moved(self, order: RunSpec, steps: int, score: float | None) -> None:
        """So many local steps of all clients are made, and this is the last pass@1."""
        shown = "" if score is None else f"pass@1 {score:.3f}"
        if order.key not in self._bars:
            # Begun where an earlier process stopped, so that its steps make no speed.
            self._bars[order.key] = self._progress.add_task(
                order.title, total=order.job.steps, completed=steps, score=shown
            )
        self._progress.update(self._bars[order.key], completed=steps, score=shown)
        if score != self._scores.get(order.key) and not self._console.is_terminal:
            self._console.print(
                f"{order.title}  step {steps}/{order.job.steps}  {shown}", soft_wrap=True
            )
        self._scores[order.key] = score

    def ended(self, order: RunSpec, what: str) -> None:
        """The run is over, one way or the other."""
        self._ended += 1
        if order.key in self._bars:
            self._progress.remove_task(self._bars.pop(order.key))
        if self._all is not None:
            self._progress.update(self._all, completed=self._ended)
            self._console.print(f"{order.title}: {what}", soft_wrap=True, highlight=False)


def run_table(result: Result) -> Table:
    """A run, round by round."""
    table = Table("round", "pass@1", "reward", "drift", "replaced", title=f"{result.recipe}")
    settings = result.run.settings
    for summary in result.run.rounds:
        first = (summary.round - 1) * settings.local_steps
        rewards = [
            reward
            for steps in result.rewards.values()
            for reward in steps[first : first + settings.local_steps]
        ]
        began = summary.round > 0
        table.add_row(
            str(summary.round) if began else "base",
            f"{summary.evaluation.pass_at_1:.3f}" if summary.evaluation else "",
            f"{_mean(rewards):.3f}" if began else "",
            f"{summary.drift.from_mean:.3g}" if summary.drift else "",
            str(sum(swap.replaced for swap in summary.swaps)) if summary.swaps else "",
        )
    return table


def sweep_table(orders: Iterable[RunSpec], failed: Container[str]) -> Table:
    """Each run of a sweep: its pass@1, or that there is none; `failed` holds keys."""
    table = Table("run", "base", "final", "best", "seconds")
    for order in orders:
        if order.done:
            result = Result.model_validate_json((order.folder / RESULT).read_bytes())
            scores = (result.base, result.final, result.best)
            figures = [f"{score:.3f}" for score in scores] + [f"{result.seconds:.0f}"]
        else:
            figures = ["[red]failed" if order.key in failed else "[dim]to do", "", "", ""]
        table.add_row(order.title, *figures)
    return table


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
