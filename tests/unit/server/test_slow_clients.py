"""How slowly a body may come."""

from pubswap_server.http.slow_clients import BodyLimits, Pace

LIMITS = BodyLimits(idle_seconds=30, grace_seconds=60, bytes_per_second=1000)


def given_up_after(rates: list[int]) -> int | None:
    """The second in which a body that comes with these bytes in each second is given up."""
    pace, waited = Pace(LIMITS), 0
    for second, received in enumerate(rates, start=1):
        waited += 1
        if waited >= pace.patience:
            return second
        if received:
            pace.spend(waited, received)
            waited = 0
    return None


def test_a_body_that_stops_is_given_up_after_the_idle_time() -> None:
    """However much came before."""
    assert given_up_after([0] * 100) == 30
    assert given_up_after([10**9] + [0] * 100) == 31


def test_a_trickle_spends_its_grace() -> None:
    """A byte a second is never idle, and is given up when the grace is used up."""
    assert given_up_after([1] * 100) == 61


def test_a_body_that_keeps_the_rate_may_take_hours() -> None:
    """There is no limit on the whole time."""
    assert given_up_after([1000] * 36_000) is None


def test_fast_bytes_buy_no_slow_hours() -> None:
    """The credit never exceeds the grace, so that a fast beginning does not pay for a trickle."""
    assert given_up_after([10**9] + [1] * 200) == 62


def test_a_stall_within_the_grace_is_forgiven_and_earned_back() -> None:
    """A line that stops for 20 s now and then, and is twice as fast between, is kept."""
    assert given_up_after(([0] * 20 + [2000] * 25) * 200) is None
