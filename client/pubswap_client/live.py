"""The display of a running client in a terminal: where the run is, and how each figure moves."""

import logging
from collections import defaultdict, deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from pubswap_client.reporting import StepReport
from pubswap_client.training.metrics import StepMetrics

WIDTH = 40  # steps in a sparkline
BLOCKS = "▁▂▃▄▅▆▇█"

FIGURES: dict[str, tuple[Callable[[StepMetrics], float], str]] = {
    "reward": (lambda m: m.reward, "{:.3f}"),
    "groups without variance": (lambda m: m.zero_variance_share, "{:.2f}"),
    "KL": (lambda m: m.kl, "{:.2e}"),
    "clip fraction": (lambda m: m.clip_share, "{:.4f}"),
    "response length": (lambda m: m.response_tokens, "{:.0f}"),
    "tokens/s": (lambda m: m.tokens_per_second, "{:.0f}"),
    "waiting for others, s": (lambda m: m.waited, "{:.1f}"),
    "memory, GiB": (lambda m: m.memory_bytes / 2**30, "{:.2f}"),
    "engine mismatch, nats": (lambda m: m.mismatch, "{:.1e}"),
}


class LiveDisplay:
    """A Reporter that redraws itself; log lines are printed above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._what = "starting"
        self._last: StepReport | None = None
        self._history: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=WIDTH))
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps, left:"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task("run", total=None)
        self._live = Live(get_renderable=self._draw, console=console, refresh_per_second=4)
        self._handlers: list[logging.Handler] = []

    def __enter__(self) -> Self:
        root = logging.getLogger()
        self._handlers, root.handlers = root.handlers, [RichHandler(console=self._console)]
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()
        logging.getLogger().handlers = self._handlers

    def doing(self, what: str) -> None:
        """Show what happens now."""
        self._what = what

    def step(self, report: StepReport) -> None:
        """Show a step's figures."""
        self._last = report
        for name, (figure, _) in FIGURES.items():
            self._history[name].append(figure(report.metrics))
        self._progress.update(
            self._task,
            total=report.rounds * report.steps,
            completed=report.overall,
            description=f"round {report.round}/{report.rounds}",
        )

    def _draw(self) -> Group:
        table = Table.grid(padding=(0, 2))
        for name, (figure, form) in FIGURES.items():
            if self._last is not None:
                value = form.format(figure(self._last.metrics))
                table.add_row(name, value, sparkline(list(self._history[name])))
        return Group(self._progress, f"now: {self._what}", table)


def sparkline(values: list[float]) -> str:
    """The values as a row of blocks, lowest to highest; flat where they are all the same."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if high <= low:
        return BLOCKS[0] * len(values)
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[round((value - low) / (high - low) * top)] for value in values)
