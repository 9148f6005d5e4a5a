"""Token buckets: how often a member may send requests, and an address may fail."""

from types import SimpleNamespace

import pytest

from pubswap_protocol.errors import TooManyRequests
from pubswap_server import rate_limits
from pubswap_server.rate_limits import MAX_KEYS, Buckets, Rate, RequestLimits

RATE = Rate(per_second=20, burst=40)


class HandClock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        """The time in seconds."""
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    clock = HandClock()
    monkeypatch.setattr(rate_limits, "time", SimpleNamespace(monotonic=clock))
    return clock


def test_a_burst_passes_and_then_only_the_rate(clock: HandClock) -> None:
    """40 at once, then 20 a second for hours, however the requests are spread."""
    buckets: Buckets[str] = Buckets(RATE)
    assert [buckets.take("a") for _ in range(40)] == [0] * 40
    assert buckets.take("a") == pytest.approx(0.05)
    assert buckets.take("b") == 0
    passed = 0
    for step in range(1, 10_001):
        clock.now = step / 100
        passed += buckets.take("a") == 0
    assert passed in range(1999, 2002)


def test_a_refused_request_costs_nothing(clock: HandClock) -> None:
    """Asking too early does not lengthen the wait."""
    buckets: Buckets[str] = Buckets(Rate(1, 1))
    buckets.take("a")
    for _ in range(100):
        assert buckets.take("a") > 0
    clock.now = 1.0
    assert buckets.take("a") == 0


def test_keys_are_bounded() -> None:
    """Many addresses cannot fill memory; the most recent are kept."""
    buckets: Buckets[int] = Buckets(Rate(0.001, 1))
    for key in range(MAX_KEYS + 10):
        buckets.take(key)
    assert buckets.take(0) == 0
    assert buckets.take(MAX_KEYS + 9) > 0
    buckets.charge(1, -1)  # evicted meanwhile
    assert buckets.take(1) == 0


def test_an_address_that_fails_too_often_is_refused_but_not_its_good_tokens(
    clock: HandClock,
) -> None:
    """A member that shares its address with someone guessing tokens is not affected."""
    limits = RequestLimits(Buckets(RATE), Buckets(Rate(1, 3)))
    limits.check_peer("proxy", "good")
    limits.passed("good")
    for _ in range(3):
        limits.check_peer("proxy", "guess")
        limits.failed("proxy")
    with pytest.raises(TooManyRequests) as caught:
        limits.check_peer("proxy", "another guess")
    assert caught.value.retry_after == 1
    limits.check_peer("proxy", "good")
    limits.check_peer("elsewhere", "guess")
    clock.now = 1.0
    limits.check_peer("proxy", "another guess")


def test_a_token_that_is_given_back_can_be_taken_again() -> None:
    """Once: a chunk of an upload costs no request."""
    buckets: Buckets[str] = Buckets(RATE)
    for _ in range(40):
        buckets.take("a")
    buckets.charge("a", -1)
    assert buckets.take("a") == 0
    assert buckets.take("a") > 0


def test_a_costly_request_is_paid_for_afterwards(clock: HandClock) -> None:
    """However few tokens are left: the next one waits until the debt is paid."""
    buckets: Buckets[str] = Buckets(Rate(10, 2))
    buckets.charge("a", 5)
    assert buckets.take("a") == 0  # a key without a request owes nothing
    buckets.charge("a", 5)
    assert buckets.wait("a") == pytest.approx(0.5)
    clock.now += 0.5
    assert buckets.take("a") == 0
