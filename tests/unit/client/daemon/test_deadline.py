"""The deadline of a batch job: the last step that fits before it."""

import signal
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pubswap_client.daemon.reporters import ASKING, Deadline, StepReport
from pubswap_client.daemon.signals import until_stopped
from pubswap_client.training.metrics import StepMetrics
from pubswap_protocol.command_line.amounts import seconds_of
from pubswap_protocol.errors import InvalidSettings

STEP = StepMetrics(0, 0, 0, 0, 0, 0, 0, seconds=10.0, grad_norm=0)


@pytest.fixture
def asked() -> Iterator[list[int]]:
    """The alarms received, which do not end this process."""
    came: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: came.append(number))
    yield came
    signal.signal(signal.SIGALRM, before)


def report(step: int, *seconds: float, last: int = 4) -> StepReport:
    """The report of a round's step after steps of these durations; `last` is the member's last
    step.
    """
    completed = [replace(STEP, seconds=each) for each in seconds]
    return StepReport(
        round=1, rounds=2, step=step, steps=4, public=False, completed=completed, last=step == last
    )


def test_no_step_is_begun_that_may_not_fit(asked: list[int]) -> None:
    """A step is assumed to take as long as the round's longest; after the last one, the adapter is
    handed in first.
    """
    deadline = Deadline(time.monotonic() + 30)
    deadline.step(report(1, 10))
    deadline.step(report(2, 10, 25))
    assert asked == []
    deadline.step(report(3, 10, 31, 1))
    assert asked == [signal.SIGALRM]
    deadline.step(report(4, 10, 31, 1, 1))
    deadline.doing("handing the adapter in")
    assert asked == [signal.SIGALRM]
    deadline.doing(ASKING)
    assert asked == [signal.SIGALRM] * 2


def test_a_member_that_makes_fewer_steps_hands_in_after_its_own_last(asked: list[int]) -> None:
    """Its own last step counts, even if the others make more."""
    deadline = Deadline(time.monotonic() + 15)
    deadline.step(report(1, 10, last=2))
    assert asked == []
    deadline.step(report(2, 10, 16, last=2))
    deadline.doing("handing the adapter in")
    assert asked == []
    deadline.doing(ASKING)
    assert asked == [signal.SIGALRM]


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
