"""What a member would send is held while the run is paused."""

import logging
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from pubswap_client.coordinator.route import LONG_POLL_SECONDS
from pubswap_client.daemon.holding import Gate
from pubswap_client.daemon.reporters import Reporter
from pubswap_protocol.errors import RunCancelled, RunPaused, Unreachable


class Coordinator:
    """Is asked whether the run is paused, and then takes or refuses what is sent."""

    def __init__(self, paused: Iterable[bool | Exception], refusals: int = 0) -> None:
        self.answers, self.refusals = iter(paused), refusals
        self.waits: list[float] = []
        self.sent = 0

    def paused(self, run: str, wait: float = 0.0) -> bool:
        """The next of its answers."""
        self.waits.append(wait)
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def take(self) -> str:
        """Take what is sent, after its refusals."""
        self.sent += 1
        if self.sent <= self.refusals:
            raise RunPaused
        return "receipt"


class Told(Reporter):
    """What the daemon says that it does."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def doing(self, what: str) -> None:
        self.words.append(what)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    """A function that sends through a gate; returns the reports and the log."""
    monkeypatch.setattr("pubswap_client.daemon.holding.PollThrottle.idle", lambda self: None)
    caplog.set_level(logging.INFO)

    def send(coordinator: Any, holds: int) -> tuple[list[int | None], list[str], list[str]]:
        reports: list[int | None] = []
        told = Told()
        run = SimpleNamespace(id="r")
        context: Any = SimpleNamespace(api=coordinator, run=run, reporter=told)
        gate = Gate(context, reports.append)
        assert gate.send(holds, coordinator.take) == "receipt"
        return reports, told.words, [record.getMessage() for record in caplog.records]

    return send


def test_nothing_is_held_or_said_while_the_run_goes_on(held: Any) -> None:
    """One question precedes what is sent."""
    coordinator = Coordinator([False])
    assert held(coordinator, 3) == ([], [], [])
    assert (coordinator.waits, coordinator.sent) == ([0.0], 1)


@pytest.mark.parametrize(("holds", "what"), [(3, "its responses to public step 3"), (0, "its up")])
def test_a_pause_is_said_once_however_long_it_is(held: Any, holds: int, what: str) -> None:
    """One line at its beginning and one at its end, and nothing is sent in between."""
    coordinator = Coordinator([True] * 50 + [False])
    reports, told, lines = held(coordinator, holds)
    assert reports == [holds, None]
    assert len(lines) == 2
    assert all(what in line for line in lines)
    assert len(told) == 1
    assert what in told[0]
    assert (coordinator.sent, set(coordinator.waits[1:])) == (1, {LONG_POLL_SECONDS})


def test_a_pause_between_question_and_request_is_no_error(held: Any) -> None:
    """The refused request is held, and sent again when the run goes on."""
    coordinator = Coordinator([False, True, True, False], refusals=1)
    reports, _, _ = held(coordinator, 3)
    assert (reports, coordinator.sent) == ([3, None], 2)


def test_a_replica_that_does_not_know_of_the_pause_yet_is_asked_again(held: Any) -> None:
    """It answers that the run goes on, and another one refuses the request."""
    coordinator = Coordinator([False] * 4, refusals=3)
    reports, _, lines = held(coordinator, 3)
    assert (reports, lines, coordinator.sent) == ([], [], 4)


@pytest.mark.parametrize("end", [RunCancelled(), Unreachable("gone")])
def test_what_ends_a_pause_otherwise_sends_nothing(held: Any, end: Exception) -> None:
    """A run that is cancelled in a pause, for example."""
    coordinator = Coordinator([True, end])
    with pytest.raises(type(end)):
        held(coordinator, 3)
    assert coordinator.sent == 0
