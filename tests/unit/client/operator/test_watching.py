"""Live views and followed logs survive a restart of the coordinator."""

import io
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from pubswap_client.operator import watching
from pubswap_client.operator.watching import lines, watch
from pubswap_protocol.errors import Unauthenticated, Unreachable
from pubswap_protocol.messages import Event, Events, RunState


def answering(*answers: Any) -> Callable[..., Any]:
    """A function that returns these answers in turn, and raises those that are errors."""
    left = iter(answers)

    def give(*_: Any) -> Any:
        found = next(left)
        if isinstance(found, Exception):
            raise found
        return found

    return give


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "EVERY", 0)


def test_a_view_says_that_it_is_stale_and_goes_on() -> None:
    """The last known state stays visible while the coordinator is away."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    read = answering(("round one", False), Unreachable("It is gone."), ("round two", True))
    watch(read, console)
    shown = screen.getvalue()
    stale = shown.index("no answer since: It is gone. Trying again.")
    assert stale < shown.rindex("round one") < shown.index("round two")


@pytest.mark.parametrize(
    "answers", [(Unreachable("It is gone."),), (("round one", False), Unauthenticated("No."))]
)
def test_a_permanent_error_ends_a_view(answers: tuple[Any, ...]) -> None:
    """An address that never answered, or a refused token."""
    wanted = [answer for answer in answers if isinstance(answer, Exception)]
    with pytest.raises(type(wanted[0])):
        watch(answering(*answers), Console(file=io.StringIO()))


class Log:
    """A fake coordinator whose log grows with each request, with outages."""

    def __init__(self, states: list[str | Exception], pages: list[list[Event]]) -> None:
        self.run = answering(*(_state(state) for state in states))
        self.asked: list[int] = []
        self._pages = answering(*pages)

    def events(self, _: str, after: int) -> Events:
        self.asked.append(after)
        return Events(events=self._pages())


def _state(state: str | Exception) -> Any:
    return state if isinstance(state, Exception) else type("View", (), {"state": RunState(state)})


def event(number: int, kind: str, **details: Any) -> Event:
    return Event(id=number, at=datetime(2026, 1, 1, tzinfo=UTC), kind=kind, details=details)


@pytest.fixture
def log() -> Log:
    one, two = event(1, "created"), event(5, "update", member="a", round=1)
    three, four = event(7, "update", member="b", round=1), event(9, "finished")
    states: list[str | Exception] = ["training", Unreachable("Gone."), "finished", "finished"]
    return Log(states, [[one], [], [two], [three, four], []])


def followed(log: Any, *wanted: Any) -> Iterator[str]:
    return lines(log, "run", True, False, *wanted)


def test_a_followed_log_leaves_nothing_out(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    """After an outage it continues from the last event seen, until the run has ended."""
    kinds = [line.split("  ")[1] for line in followed(log)]
    assert kinds == ["created", "update", "update", "finished"]
    assert log.asked == [0, 1, 1, 5, 9]
    assert capsys.readouterr().err == "Gone. Trying again.\n"


def test_a_log_is_filtered_by_kind_and_member(log: Log) -> None:
    """The next page starts after the skipped events too."""
    told = list(followed(log, ["update"], "b"))
    assert len(told) == 1 and told[0].endswith("member b, round 1")
    at = datetime(2026, 1, 1, tzinfo=UTC).astimezone()
    assert told[0].startswith(f"{at:%F %T %Z}  "), "the dashboard's times are in another zone"


def test_a_kind_that_no_event_has_is_reported(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    """The message lists the existing kinds; a mistyped one would look like a quiet run."""
    assert len(list(followed(log, ["updte", "update"]))) == 2
    told = "The log has no event of the kind updte; it has: created, finished, update.\n"
    assert capsys.readouterr().err.endswith(told)


@pytest.mark.parametrize("as_json", [False, True])
def test_no_line_of_a_log_moves_a_cursor_or_reverses_text(as_json: bool) -> None:
    """As JSON, it still decodes to the event's text."""
    evil = "a\x1b[2J\x7f\x9b2J\u202e\u2028é"
    log = Log([], [[event(1, "evaluated", topic=evil)], []])
    (line,) = lines(log, "run", False, as_json)  # type: ignore[arg-type]
    assert line.isprintable() and "é" in line
    assert not as_json or json.loads(line)["details"]["topic"] == evil
