"""When a round or an exchange closes."""

from datetime import UTC, datetime, timedelta

import pytest

from pubswap_server.runs.quorum import Turnout, closes, closes_at, missing, needed

START = datetime(2026, 1, 1, tzinfo=UTC)


def turnout(expected: set[str], arrived: set[str]) -> Turnout:
    """In numbers, of members by name."""
    return Turnout(len(arrived), len(expected - arrived), START if arrived else None)


@pytest.mark.parametrize(
    ("expected", "arrived", "quorum", "seconds", "closed"),
    [
        ({"a", "b"}, {"a", "b"}, 1, 0, True),
        ({"a", "b"}, {"a"}, 1, 9, False),
        ({"a", "b"}, {"a"}, 1, 10, True),
        ({"a", "b", "c"}, {"a"}, 2, 100, False),
        ({"a", "b", "c"}, {"a", "b"}, 2, 100, True),
        ({"a"}, {"a", "gone"}, 1, 0, True),
        (set(), set(), 1, 100, False),
        (set(), {"gone"}, 1, 0, True),
    ],
)
def test_closing_needs_everybody_or_a_quorum_after_the_deadline(
    expected: set[str], arrived: set[str], quorum: int, seconds: int, closed: bool
) -> None:
    """The deadline of 10 s counts from the first arrival."""
    now = START + timedelta(seconds=seconds)
    assert closes(turnout(expected, arrived), quorum, 10, now) is closed


def test_a_quorum_misses_those_whom_nobody_can_bring() -> None:
    """Who arrived counts, and who may still arrive."""
    assert missing(turnout({"a"}, {"gone"}), 2) == 0
    assert missing(turnout({"a"}, set()), 3) == 2


@pytest.mark.parametrize(
    ("arrived", "outstanding", "quorum", "minimum", "fewest"),
    [
        (1, 1, 3, None, 3),
        (1, 2, 3, 2, 3),
        (1, 1, 3, 2, 2),
        (1, 0, 3, 2, 2),
        (2, 0, 1, 2, 1),
        (0, 1, 1, 2, 2),
    ],
)
def test_with_a_minimum_a_quorum_is_at_most_who_is_here(
    arrived: int, outstanding: int, quorum: int, minimum: int | None, fewest: int
) -> None:
    """Below the minimum it is that: nothing closes."""
    assert needed(Turnout(arrived, outstanding, START), quorum, minimum) == fewest


def test_only_a_quorum_gives_a_time_to_look_again() -> None:
    """Before it nothing but an arrival can close, so there is no time to wait for."""
    assert closes_at(turnout(set(), {"a"}), 1, 10) == START + timedelta(seconds=10)
    assert closes_at(turnout(set(), {"a"}), 2, 10) is None
    assert closes_at(turnout({"a"}, set()), 1, 10) is None


def test_a_deadline_beyond_the_calendar_never_comes() -> None:
    """An operator who means 'never' may say a very large number."""
    assert closes_at(turnout(set(), {"a"}), 1, 1e12) is None
    assert not closes(turnout({"a", "b"}, {"a"}), 1, 1e300, START)
    assert closes(turnout({"a"}, {"a"}), 1, 1e300, START)
