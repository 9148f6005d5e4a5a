"""When a round or an exchange closes."""

from datetime import UTC, datetime, timedelta

import pytest

from pubswap_server.closing import closes

START = datetime(2026, 1, 1, tzinfo=UTC)


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
    first = START if arrived else None
    now = START + timedelta(seconds=seconds)
    assert closes(expected, arrived, quorum, first, 10, now) is closed
