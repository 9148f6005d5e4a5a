"""When and for how long a call is retried."""

from types import SimpleNamespace

import pytest

from pubswap_client.coordinator import retry
from pubswap_client.coordinator.retry import Backoff, PollThrottle, retrying
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


@pytest.fixture
def now() -> list[float]:
    """The time, which stands still while a call waits."""
    return [0.0]


@pytest.fixture
def waits(now: list[float], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits, which take no time."""
    waits: list[float] = []
    clock = SimpleNamespace(sleep=waits.append, monotonic=lambda: now[0])
    monkeypatch.setattr(retry, "time", clock)
    return waits


def test_a_retryable_error_is_tried_again_until_it_ends(waits: list[float]) -> None:
    """There is a wait before each retry."""
    calls, call = failing(3, Unreachable("down"))
    assert retrying(call, Backoff()) == "answer"
    assert len(calls) == 4
    assert len(waits) == 3


def test_a_final_error_is_raised_at_once() -> None:
    """An error that a retry cannot fix is not retried."""
    calls, call = failing(1, Forbidden())
    with pytest.raises(Forbidden):
        retrying(call, Backoff())
    assert len(calls) == 1


def test_tries_are_bounded_when_asked(waits: list[float]) -> None:
    """With three tries, the third failure is raised."""
    calls, call = failing(9, Unreachable("down"))
    with pytest.raises(Unreachable):
        retrying(call, Backoff(tries=3))
    assert len(calls) == 3
    assert len(waits) == 2


def test_delay_doubles_up_to_its_cap_and_is_fully_jittered(monkeypatch: pytest.MonkeyPatch) -> None:
    """After n failures the wait is between 0 and min(20, 2^n) seconds."""
    monkeypatch.setattr(retry.random, "uniform", lambda *ends: ends)
    spans = [Backoff().delay(n) for n in (1, 2, 3, 4, 5, 6, 99)]
    assert spans == [(0, longest) for longest in (2, 4, 8, 16, 20, 20, 20)]


def test_a_coordinator_that_names_a_time_is_not_asked_before(waits: list[float]) -> None:
    """The wait is that time plus jitter."""
    _, call = failing(2, TooManyRequests("later", retry_after=7))
    assert retrying(call, Backoff(base_seconds=0.5)) == "answer"
    assert 7 <= waits[0] <= 8
    assert 7 <= waits[1] <= 9


def test_an_idle_client_asks_at_most_every_two_seconds(
    now: list[float], waits: list[float]
) -> None:
    """The first three times are exempt; a long poll or a useful answer resets the count."""
    throttle = PollThrottle()
    for _ in range(5):
        throttle.idle()
    assert waits == [2.0, 2.0]
    now[0] += 25
    throttle.idle()
    throttle.reset()
    for _ in range(3):
        throttle.idle()
    assert waits == [2.0, 2.0]
