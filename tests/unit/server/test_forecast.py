"""The forecast of when a run will end."""

from datetime import UTC, datetime, timedelta

from pubswap_server.runs.history import expected_end

START = datetime(2026, 11, 23, tzinfo=UTC)


def at(*minutes: float) -> list[datetime]:
    return [START + timedelta(minutes=each) for each in minutes]


def test_the_median_of_the_last_rounds_counts() -> None:
    """One round that waited for hours does not matter."""
    ends = at(0, 10, 20, 320, 330, 340)
    assert expected_end(ends, 3, ends[-1]) == ends[-1] + timedelta(minutes=30)


def test_a_round_that_takes_longer_is_taken_to_end_now() -> None:
    """The rounds after it are expected to take as long as usual."""
    ends = at(0, 10)
    [now] = at(50)
    assert expected_end(ends, 2, now) == now + timedelta(minutes=10)


def test_nothing_is_expected_before_a_round_has_ended_or_when_none_is_left() -> None:
    assert expected_end([], 3, START) is None
    assert expected_end(at(0), 3, START) is None
    assert expected_end(at(0, 10), 0, START) is None


def test_nothing_is_expected_that_no_message_may_say() -> None:
    """A run of a million rounds goes on until it is cancelled."""
    assert expected_end(at(0, 20), 10**6, START) is None
    assert expected_end(at(0, 10**6), 10**6, START) is None
