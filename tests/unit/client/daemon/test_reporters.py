"""Reporting of training: log lines, the live display and TensorBoard files."""

import io
import logging
import time
from pathlib import Path

import pytest
from rich.console import Console

from pubswap_client.daemon.reporters import (
    LiveDisplay,
    LogLines,
    Reporters,
    StepReport,
    tracking,
)
from pubswap_client.training.metrics import StepMetrics
from pubswap_protocol.command_line import progress_bar
from pubswap_protocol.command_line.curves import block_curve
from pubswap_protocol.command_line.logs import Lines
from pubswap_protocol.errors import InvalidSettings


def report(step: int) -> StepReport:
    metrics = StepMetrics(
        loss=0.1 * step,
        kl=1e-3,
        clip_share=0.02,
        reward=0.25 * step,
        zero_variance_share=0.5,
        response_tokens=17.0,
        tokens=600,
        seconds=2.0,
        grad_norm=0.3,
        mismatch=1e-6,
        memory_bytes=3 << 30,
        prompts_sampled=8 if step == 1 else 13,
        groups_replaced=0 if step == 1 else 3,
        donated_tokens=40 if step == 2 else 0,
        donated_probability=0.7 if step == 2 else 0.0,
        donated_clip_share=0.01 if step == 2 else 0.0,
    )
    return StepReport(round=2, rounds=3, step=step, steps=4, public=step == 2, completed=[metrics])


def test_a_log_line_has_the_figures(caplog: pytest.LogCaptureFixture) -> None:
    """It has the figures that show whether training goes well, and the step."""
    caplog.set_level(logging.INFO)
    LogLines().doing("waiting")
    LogLines().step(report(2))
    (line,) = [Lines("console").format(record) for record in caplog.records]
    wanted = "step round=2 step=2 steps=4 kind=public reward=0.5 loss="
    assert wanted in line and "kl=0.001 clip_share=0.02 zero_variance_share=0.5" in line
    assert (
        "response_tokens=17.0 seconds=2.0 sampling=0.0 tokens_per_second=300.0 groups_replaced=3.0"
        in line
    )
    assert line.endswith("donated_probability=0.7 donated_clip_share=0.01 memory_gib=3.0")
    LogLines().step(report(1))
    assert (
        Lines("console")
        .format(caplog.records[-1])
        .endswith("tokens_per_second=300.0 memory_gib=3.0")
    )


def test_an_activity_of_more_than_a_minute_is_a_log_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and not while there are steps."""
    caplog.set_level(logging.INFO)
    start, seconds = time.monotonic(), iter(range(1000))
    lines = LogLines()
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: start + next(seconds))
    lines.step(report(1))
    lines.doing("private step 2")
    for _ in range(50):
        lines.look()
    lines.step(report(2))
    lines.doing("waiting for peers")
    for _ in range(150):
        lines.look()
    assert [record.getMessage() for record in caplog.records] == [
        "step",
        "step",
        "Now: waiting for peers.",
    ]


def test_the_live_display_shows_where_the_run_is_and_how_figures_move() -> None:
    """Steps of the whole run, the current activity and a sparkline for each figure; logs stay
    above.
    """
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=120)
    before = [*logging.getLogger().handlers]
    with LiveDisplay(console) as display:
        for step in (1, 2, 3):
            display.step(report(step))
        display.doing("waiting for the other organisations")
        logging.getLogger("pubswap_client").warning("Going on with our own.")
        console.print(display._draw())
    assert logging.getLogger().handlers == before
    shown = file.getvalue()
    for part in (
        "groups replaced",
        "round 2/3",
        "7/12",
        "now: waiting for the other",
        "0.750",
        "▁▅█",
        "3.00",
    ):
        assert part in shown
    assert "Going on with our own." in shown


def test_what_a_line_quotes_moves_no_cursor_of_the_live_display() -> None:
    """An error about an answer quotes its keys, which the coordinator chooses."""
    orders, file = ("\x1b[2J", "\x07", "\x9b"), io.StringIO()
    evil = f"layout.{''.join(orders)}end"
    with LiveDisplay(Console(file=file, force_terminal=True, width=120)) as display:
        logging.getLogger("pubswap_client").warning("%s: no number", evil)
        display.doing(evil)
    shown = file.getvalue()
    assert shown.count("end") == 2
    assert not any(order in shown for order in orders)


def test_a_sparkline_spans_its_values() -> None:
    """From lowest to highest; a constant is flat, and no values give an empty line."""
    assert block_curve([0.0, 1.0, 0.5]) == "▁█▅"
    assert block_curve([2.0, 2.0]) == "▁▁"
    assert block_curve([]) == ""


def test_tensorboard_gets_every_figure_of_every_step(tmp_path: Path) -> None:
    """TensorBoard's own reader finds them by step of the run, in a folder readable by its owner
    only.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "tracking"
    with tracking(["tensorboard"], "consortium", folder, {"seed": 1}) as tracker:
        reporter = Reporters([tracker, LogLines()])
        reporter.doing("starting")
        for step in (1, 2):
            reporter.step(report(step))
    events = EventAccumulator(str(folder / "consortium")).Reload()
    rewards = events.Scalars("train/reward")
    assert [(event.step, event.value) for event in rewards] == [(5, 0.25), (6, 0.5)]
    assert [event.value for event in events.Scalars("train/tokens_per_second")] == [300.0, 300.0]
    assert "train/mismatch" in events.Tags()["scalars"]
    donated = events.Scalars("train/donated_probability")
    assert [(event.step, event.value) for event in donated] == [(6, pytest.approx(0.7))]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_missing_tracker_is_named_with_what_to_install(tmp_path: Path) -> None:
    """Before training begins."""
    with (
        pytest.raises(InvalidSettings, match="pip install trackio"),
        tracking(["trackio"], "consortium", tmp_path, {}),
    ):
        pass
