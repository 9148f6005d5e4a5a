"""When and for how long a call is retried."""

import pytest

from pubswap_client.coordinator.retry import Backoff, Pace, retrying
from pubswap_protocol.errors import Forbidden, PubSwapError, TooManyRequests, Unreachable


def failing(times: int, error: PubSwapError) -> "tuple[list[int], object]":
    """A call that raises `error` the first `times` times and then answers."""
    calls: list[int] = []

    def call() -> str:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return "answer"

    return calls, call


def test_a_retryable_error_is_tried_again_until_it_ends() -> None:
    """There is a wait before each retry."""
    waits: list[float] = []
    calls, call = failing(3, Unreachable("down"))
    assert retrying(call, Backoff(), waits.append) == "answer"
    assert len(calls) == 4
    assert len(waits) == 3


def test_a_final_error_is_raised_at_once() -> None:
    """An error that a retry cannot fix is not retried."""
    calls, call = failing(1, Forbidden())
    with pytest.raises(Forbidden):
        retrying(call, Backoff(), lambda seconds: None)
    assert len(calls) == 1


def test_tries_are_bounded_when_asked() -> None:
    """With three tries, the third failure is raised."""
    calls, call = failing(9, Unreachable("down"))
    with pytest.raises(Unreachable):
        retrying(call, Backoff(tries=3), lambda seconds: None)
    assert len(calls) == 3


def test_delay_doubles_up_to_its_cap_and_is_fully_jittered() -> None:
    """After n failures the wait is between 0 and min(20, 2^n) seconds."""
    longest = [Backoff().delay(n, lambda: 1.0) for n in (1, 2, 3, 4, 5, 6, 99)]
    assert longest == [2, 4, 8, 16, 20, 20, 20]
    assert Backoff().delay(5, lambda: 0.0) == 0


def test_a_coordinator_that_names_a_time_is_not_asked_before() -> None:
    """The wait is that time plus jitter."""
    waits: list[float] = []
    _, call = failing(2, TooManyRequests("later", retry_after=7))
    assert retrying(call, Backoff(base_seconds=0.5), waits.append) == "answer"
    assert 7 <= waits[0] <= 8
    assert 7 <= waits[1] <= 9


def test_an_idle_client_asks_at_most_every_two_seconds() -> None:
    """The first three times are exempt; a long poll or a useful answer resets the count."""
    now, waits = [0.0], list[float]()
    pace = Pace(lambda: now[0], waits.append)
    for _ in range(5):
        pace.idle()
    assert waits == [2.0, 2.0]
    now[0] += 25
    pace.idle()
    pace.renew()
    for _ in range(3):
        pace.idle()
    assert waits == [2.0, 2.0]
