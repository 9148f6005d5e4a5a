"""When a round or an exchange closes."""

from datetime import UTC, datetime, timedelta

import pytest

from pubswap_protocol.settings import AggregationSettings
from pubswap_server.runs.quorum import HEARD_SECONDS, Arrivals, half, heard_since, needed

START = datetime(2026, 1, 1, tzinfo=UTC)


def arrivals(expected: set[str], arrived: set[str], quorum: int) -> Arrivals:
    """A arrivals from numbers, with members named."""
    first_at = START if arrived else None
    return Arrivals(len(arrived), len(expected - arrived), first_at, quorum, 10)


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
    assert arrivals(expected, arrived, quorum).closes(now) is closed


def test_a_quorum_misses_those_whom_nobody_can_bring() -> None:
    """Members that have arrived count, and those that may still arrive."""
    assert arrivals({"a"}, {"gone"}, 2).missing == 0
    assert arrivals({"a"}, set(), 3).missing == 2


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
    assert Arrivals.of(rules, 1, arrived=1, outstanding=1, first_at=START).quorum == 2
    assert Arrivals.of(rules, None, arrived=1, outstanding=1, first_at=START).quorum == 3


def test_only_a_quorum_gives_a_time_to_look_again() -> None:
    """Before a quorum only an arrival can close it, so there is no time to wait for."""
    assert arrivals(set(), {"a"}, 1).closes_at == START + timedelta(seconds=10)
    assert arrivals(set(), {"a"}, 2).closes_at is None
    assert arrivals({"a"}, set(), 1).closes_at is None


@pytest.mark.parametrize(
    ("arrived", "living", "dead", "closed"),
    [
        (1, 0, 3, True),  # three dead of four stop nothing
        (1, 1, 0, True),  # of two, one is half
        (1, 2, 0, False),
        (1, 3, 0, False),  # an early one does not make three others late
        (2, 2, 0, True),
        (1, 1, 5, True),
        (2, 3, 4, False),
        (0, 0, 4, False),  # nothing closes without a contribution
        (0, 4, 0, False),
    ],
)
def test_without_a_quorum_set_half_of_who_is_heard_from_must_arrive(
    arrived: int, living: int, dead: int, closed: bool
) -> None:
    """At the deadline, and whatever the members that are not heard from."""
    rules = AggregationSettings(deadline_seconds=10)
    first_at = START if arrived else None
    outstanding = living + dead
    early, due = START + timedelta(seconds=9), START + timedelta(seconds=10)
    arrivals = Arrivals.of(rules, None, arrived, outstanding, first_at, unheard=dead)
    assert arrivals.closes(due) is closed
    assert not arrivals.closes(early)
    assert arrivals.overdue(due) is (arrived > 0 and not closed)
    assert arrivals.missing == 0 or not outstanding
    if arrivals.overdue(due):  # what the operator is advised to do helps, and nothing less does
        for left_out in range(living + 1):
            fewer = Arrivals.of(rules, None, arrived, outstanding - left_out, first_at, dead)
            assert fewer.closes(due) is (left_out >= arrivals.in_the_way)


def test_half_is_rounded_up_and_never_none() -> None:
    """Of three, two; of nobody, still one."""
    assert [half(members) for members in range(6)] == [1, 1, 1, 2, 2, 3]


def test_a_minimum_bounds_the_half_from_below_alone() -> None:
    """Fewer members than the minimum close nothing; more of them close with half."""
    rules = AggregationSettings(deadline_seconds=10)
    assert Arrivals.of(rules, 3, arrived=1, outstanding=1, first_at=START).quorum == 3
    assert Arrivals.of(rules, 3, arrived=2, outstanding=2, first_at=START).quorum == 2


def test_a_member_counts_as_heard_for_a_deadline_and_for_a_while_after_a_start() -> None:
    """A minute at least, because heartbeats are that rare; and no coordinator hears while down."""
    long_ago, now = START - timedelta(days=1), START
    assert heard_since(now, long_ago, 600) == now - timedelta(seconds=600)
    assert heard_since(now, long_ago, 0.1) == now - timedelta(seconds=HEARD_SECONDS)
    just_started = now - timedelta(seconds=HEARD_SECONDS - 1)
    assert heard_since(now, just_started, 600) is None
