"""The deadline of a batch job: the last step that fits before it."""

import signal
import time
from dataclasses import replace

import pytest

from pubswap_client.daemon.own_settings import Deadline
from pubswap_client.daemon.signals import until_stopped
from pubswap_client.training.metrics import StepMetrics
from pubswap_protocol.command_line.amounts import seconds_of
from pubswap_protocol.errors import InvalidSettings

STEP = StepMetrics(0, 0, 0, 0, 0, 0, 0, seconds=10.0, grad_norm=0)


def over(left: float, *seconds: float) -> bool:
    """Whether the deadline is over so many seconds before it, after steps of these durations."""
    deadline = Deadline(time.monotonic() + left)
    deadline.look([replace(STEP, seconds=each) for each in seconds])
    return deadline.over


def test_no_step_is_begun_that_may_not_fit() -> None:
    """A step is assumed to take as long as the round's longest; waits for peers do not count."""
    assert not over(30, 10)
    assert not over(30, 10, 25)
    assert over(30, 10, 31, 1)
    deadline = Deadline(time.monotonic() + 30)
    deadline.look([replace(STEP, seconds=10, waited=100)])
    assert not deadline.over


def test_a_process_without_a_deadline_or_a_step_goes_on() -> None:
    """Otherwise jobs shorter than a step would end at once, one after the other."""
    assert not Deadline(0.0).over
    endless = Deadline()
    endless.look([replace(STEP, seconds=1e9)])
    assert not endless.over


def test_a_waiting_daemon_stops_at_the_deadline(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status is 75, and no alarm is left behind."""
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(SystemExit) as ended, until_stopped(time.monotonic() + 0.3):
        time.sleep(60)
    assert ended.value.code == 75
    assert "Time is up" in capsys.readouterr().err
    with until_stopped(time.monotonic() + 3600):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) == before


def test_a_closed_terminal_stops_a_command_unless_it_began_with_nohup() -> None:
    """Without its own end, `pubswap demo` left a coordinator and its members running for ever."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as ended, until_stopped():
            signal.raise_signal(signal.SIGHUP)
        assert ended.value.code == 130
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with until_stopped():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_follower_is_ended_by_its_leader_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second alarm would race with the leader's."""
    monkeypatch.setenv("RANK", "1")
    with until_stopped(time.monotonic() + 0.01):
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("text", "seconds"), [("55m", 3300), ("11h30m", 41400), ("90s", 90), ("1h1m1s", 3661)]
)
def test_a_duration_is_parsed(text: str, seconds: int) -> None:
    """In hours, minutes and seconds."""
    assert seconds_of(text, "--until") == seconds


@pytest.mark.parametrize("text", ["", "55", "m", "0m", "-5m", "5m3h", "1e9s", "99999999s", "٣m"])
def test_a_mistyped_duration_is_refused(text: str) -> None:
    """The message gives examples."""
    with pytest.raises(InvalidSettings, match=r"--until takes a time such as 55m"):
        seconds_of(text, "--until")
