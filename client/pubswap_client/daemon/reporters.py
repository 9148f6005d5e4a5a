"""Reporters of a daemon's progress: log lines, a live display, trackers."""

import logging
import math
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self

from accelerate import PartialState
from accelerate.tracking import GeneralTracker, TensorBoardTracker, TrackioTracker, WandBTracker
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from pubswap_client.state.journal import RoundKey
from pubswap_client.training.metrics import StepMetrics
from pubswap_protocol.bounds import printable
from pubswap_protocol.command_line.amounts import duration_text
from pubswap_protocol.command_line.curves import block_curve
from pubswap_protocol.command_line.logs import log_to, values
from pubswap_protocol.command_line.progress_bar import SAME_SECONDS, LogThrottle
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.files import private_folder

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepReport:
    """A local step that was just made, in round `round` of `rounds`."""

    round: int
    rounds: int
    step: int  # from 1, in the order of the updates
    steps: int
    public: bool
    completed: Sequence[StepMetrics]  # of the round's steps so far, up to this one

    @property
    def metrics(self) -> StepMetrics:
        return self.completed[-1]

    @property
    def overall(self) -> int:
        """The step's number in the whole run, from 1."""
        return (self.round - 1) * self.steps + self.step

    @property
    def kind(self) -> str:
        """Private or public, and how stale its responses were, if at all."""
        late = self.metrics.staleness
        return ("public" if self.public else "private") + (f", {late} late" if late else "")


# Figures reported for a round as means over its steps.
MEANS = ("reward", "loss", "kl", "clip_share", "zero_variance_share", "response_tokens")


def total(steps: Sequence[StepMetrics], name: str) -> float:
    return sum(float(getattr(step, name)) for step in steps)


class Reporter:
    """Receives a daemon's progress; subclasses override what they show."""

    def doing(self, what: str) -> None:
        """The daemon's activity has changed to this, in a few words."""

    def step(self, report: StepReport) -> None:
        """A step was made."""

    def trained(self, key: RoundKey, steps: Sequence[StepMetrics]) -> None:
        """All steps of a round were made and are on disk.

        Repeated after a restart before the hand-in.
        """

    def late(self) -> None:
        """The update of the round trained last did not come in time to count."""

    def transfer(self, what: str) -> Callable[[int, int], None]:
        """A transfer begins; call the returned function with the bytes done and the total."""
        self.doing(what)
        return lambda done, total: self.doing(f"{what}, {done / 1e6:.0f} of {total / 1e6:.0f} MB")


# Figures that a log line includes only if they are not zero.
OCCASIONAL = ("groups_replaced", "donated_probability", "donated_clip_share")


class LogLines(Reporter):
    """One line for each step, for a log file or a journal, with the metrics' names.

    `look`, called each second, names an activity that takes longer than a minute.
    """

    def __init__(self) -> None:
        self._doing = ""
        self._throttle = LogThrottle(news=SAME_SECONDS, same=math.inf)
        self._throttle.printed("")

    def doing(self, what: str) -> None:
        self._doing = what

    def look(self) -> None:
        if self._throttle.due(self._doing):
            log.info("Now: %s.", self._doing)
            self._throttle.printed(self._doing)

    def step(self, report: StepReport) -> None:
        metrics = report.metrics
        names = (*MEANS, "seconds", "sampling", "tokens_per_second")
        figures = {name: getattr(metrics, name) for name in names}
        figures |= {name: value for name in OCCASIONAL if (value := getattr(metrics, name))}
        figures["memory_gib"] = metrics.memory_bytes / 2**30
        short = {name: float(f"{figure:.3g}") for name, figure in figures.items()}
        position = {"round": report.round, "step": report.step, "steps": report.steps}
        log.info("step", extra=values(**position, kind=report.kind, **short))
        self._throttle.printed("")


@dataclass(frozen=True)
class Reporters(Reporter):
    reporters: Sequence[Reporter]

    def doing(self, what: str) -> None:
        for reporter in self.reporters:
            reporter.doing(what)

    def step(self, report: StepReport) -> None:
        for reporter in self.reporters:
            reporter.step(report)

    def trained(self, key: RoundKey, steps: Sequence[StepMetrics]) -> None:
        for reporter in self.reporters:
            reporter.trained(key, steps)

    def late(self) -> None:
        for reporter in self.reporters:
            reporter.late()


WIDTH = 40  # steps in a sparkline

FIGURES: dict[str, tuple[Callable[[StepMetrics], float], str]] = {
    "reward": (lambda m: m.reward, "{:.3f}"),
    "groups without variance": (lambda m: m.zero_variance_share, "{:.2f}"),
    "groups replaced": (lambda m: m.groups_replaced, "{:.0f}"),
    "KL": (lambda m: m.kl, "{:.2e}"),
    "clip fraction": (lambda m: m.clip_share, "{:.4f}"),
    "response length": (lambda m: m.response_tokens, "{:.0f}"),
    "tokens/s": (lambda m: m.tokens_per_second, "{:.0f}"),
    "waiting for others, s": (lambda m: m.waited, "{:.1f}"),
    "memory, GiB": (lambda m: m.memory_bytes / 2**30, "{:.2f}"),
    "engine mismatch, nats": (lambda m: m.mismatch, "{:.1e}"),
}


class LiveDisplay(Reporter):
    """A live display in the terminal; log lines are printed above it."""

    def __init__(self, console: Console) -> None:
        self.doing("starting")
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
        self._handlers = [*logging.getLogger().handlers]
        self._live.start()
        log_to(sys.stderr)  # the display has replaced it with its own
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        logging.getLogger().handlers = self._handlers

    def doing(self, what: str) -> None:
        self._what, self._since = what, time.monotonic()

    def step(self, report: StepReport) -> None:
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
                table.add_row(name, value, block_curve(list(self._history[name])))
        seconds = duration_text(time.monotonic() - self._since)
        return Group(self._progress, f"now: {printable(self._what)}, {seconds}", table)


Tracker = Literal["tensorboard", "wandb", "trackio"]


@dataclass(frozen=True)
class Tracking(Reporter):
    """Sends every figure of a step to TensorBoard and other trackers."""

    trackers: Sequence[GeneralTracker]

    def step(self, report: StepReport) -> None:
        figures = asdict(replace(report.metrics, donors={}))
        excluded = {"donors"}
        if not report.metrics.donated_tokens:  # the curve shows only steps with some
            excluded |= {"donated_probability", "donated_clip_share"}
        values = {f"train/{name}": value for name, value in figures.items() if name not in excluded}
        values |= {
            "train/tokens_per_second": report.metrics.tokens_per_second,
            "train/public": float(report.public),
            "train/round": report.round,
        }
        for tracker in self.trackers:
            tracker.log(values, step=report.overall)


def check_trackers(names: Sequence[Tracker]) -> None:
    """Raise InvalidSettings, saying what to install, if a library is missing."""
    for name in names:
        if find_spec(name) is None:
            raise InvalidSettings(
                f"track names {name!r}, which is not installed: pip install {name}"
            )


@contextmanager
def tracking(
    names: Sequence[Tracker], project: str, folder: Path, settings: dict[str, Any]
) -> Iterator[Tracking]:
    """Trackers for a run's `project`; TensorBoard's files go below `folder`.

    Raises InvalidSettings, saying what to install, if a library is missing.
    """
    check_trackers(names)
    PartialState()  # accelerate's trackers need it to find out which process they are in
    trackers = [_tracker(name, project, folder) for name in names]
    for tracker in trackers:
        tracker.start()
        if tracker.name != "tensorboard":
            tracker.store_init_configuration(settings)
    try:
        yield Tracking(trackers)
    finally:
        for tracker in trackers:
            tracker.finish()


def _tracker(name: Tracker, project: str, folder: Path) -> GeneralTracker:
    if name == "tensorboard":
        return TensorBoardTracker(project, logging_dir=private_folder(folder))
    return (WandBTracker if name == "wandb" else TrackioTracker)(project)
