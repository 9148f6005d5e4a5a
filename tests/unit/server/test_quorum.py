"""When a round or an exchange closes."""

from datetime import UTC, datetime, timedelta

import pytest

from pubswap_protocol.settings import AggregationSettings
from pubswap_server.runs.quorum import Turnout, needed

START = datetime(2026, 1, 1, tzinfo=UTC)


def turnout(expected: set[str], arrived: set[str], quorum: int) -> Turnout:
    """A turnout from numbers, with members named."""
    first_at = START if arrived else None
    return Turnout(len(arrived), len(expected - arrived), first_at, quorum, 10)


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
    assert turnout(expected, arrived, quorum).closes(now) is closed


def test_a_quorum_misses_those_whom_nobody_can_bring() -> None:
    """Members that have arrived count, and those that may still arrive."""
    assert turnout({"a"}, {"gone"}, 2).missing == 0
    assert turnout({"a"}, set(), 3).missing == 2


@pytest.mark.parametrize(
    ("here", "quorum", "minimum", "fewest"),
    [(2, 3, None, 3), (3, 3, 2, 3), (2, 3, 2, 2), (1, 3, 2, 2), (2, 1, 2, 1), (1, 1, 2, 2)],
)
def test_with_a_minimum_a_quorum_is_at_most_who_is_here(
    here: int, quorum: int, minimum: int | None, fewest: int
) -> None:
    """Below the minimum, the quorum is the minimum, so nothing closes."""
    assert needed(here, quorum, minimum) == fewest


def test_who_has_arrived_and_who_may_still_arrive_are_both_here() -> None:
    """Of a quorum of 3, two are asked for if one has arrived and one may still."""
    rules = AggregationSettings(quorum=3)
    assert Turnout.of(rules, 1, arrived=1, outstanding=1, first_at=START).quorum == 2
    assert Turnout.of(rules, None, arrived=1, outstanding=1, first_at=START).quorum == 3


def test_only_a_quorum_gives_a_time_to_look_again() -> None:
    """Before a quorum only an arrival can close it, so there is no time to wait for."""
    assert turnout(set(), {"a"}, 1).closes_at == START + timedelta(seconds=10)
    assert turnout(set(), {"a"}, 2).closes_at is None
    assert turnout({"a"}, set(), 1).closes_at is None
