"""Progress lines of simulations, where there is no terminal."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from pubswap_protocol.command_line import progress_bar
from pubswap_simulation.display import SweepDisplay
from pubswap_simulation.job import JobReport
from support.eventually import until


class Clock:
    """time.monotonic, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(progress_bar.time, "monotonic", lambda: self.now)


def test_lines_come_with_news_and_at_least_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step waits for 15 s after the last line, and nothing new for a minute."""
    clock, throttle, printed = Clock(monkeypatch), progress_bar.LogThrottle(), []
    for second in range(130):
        clock.now = float(second)
        if throttle.due(step := min(2, second // 10)):
            throttle.printed(step)
            printed.append((second, step))
    assert printed == [(0, 0), (15, 1), (30, 2), (90, 2)]


def test_without_a_terminal_steps_and_scores_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line has the steps, the reward, pass@1 and the time; a new score does not wait."""
    clock, file = Clock(monkeypatch), io.StringIO()
    spec: Any = SimpleNamespace(key="k", title="seed=0", job=SimpleNamespace(steps=8))
    display = SweepDisplay(Console(file=file, width=200, markup=False), 1)
    reports = [
        JobReport(doing="loading [the] model"),
        JobReport(),
        JobReport(score=0.25),
        JobReport(steps=1, score=0.25, reward=0.5),  # too soon after the line before
        JobReport(steps=3, score=0.25, reward=0.125),
        JobReport(steps=4, score=0.5, reward=0.125),
    ]
    for report in reports:
        clock.now = 10.0 * report.steps
        display.update(spec, report)
        display._print_due()
    display.finish(spec, "done")
    display._print_due()
    assert file.getvalue().splitlines() == [
        "seed=0  step 0/8  0 s  loading [the] model",
        "seed=0  step 0/8  0 s  pass@1 0.250",
        "seed=0  step 3/8  30 s  reward 0.125  pass@1 0.250  about 50 s left",
        "seed=0  step 4/8  40 s  reward 0.125  pass@1 0.500  about 40 s left",
        "seed=0: done",
    ]


def test_a_display_prints_lines_by_itself() -> None:
    """So a run that says nothing for a minute is not taken for a dead one."""
    file = io.StringIO()
    spec: Any = SimpleNamespace(key="k", title="seed=0", job=SimpleNamespace(steps=8))
    with SweepDisplay(Console(file=file, width=200, markup=False), 1) as display:
        display.update(spec, JobReport(doing="starting"))
        until(lambda: "starting" in file.getvalue())
