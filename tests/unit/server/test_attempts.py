"""A move that fails is tried again ever later, and is a stall after three tries."""

from pubswap_server.conductor.attempts import LATEST_SECONDS, Attempts


def test_tries_become_rarer_until_the_run_has_moved() -> None:
    """Each wait is twice the one before, up to a minute; a success forgets them all."""
    now = 0.0
    attempts, waits, stalled = Attempts(1.0, clock=lambda: now), [], []
    for _ in range(9):
        stalled.append(attempts.failed("run"))
        began = now
        while not attempts.due("run"):
            now += 0.5
        waits.append(now - began)
    assert stalled == [False, False, *[True] * 7]
    assert waits == [2, 4, 8, 16, 32, *[LATEST_SECONDS] * 4]
    attempts.failed("run")
    assert attempts.due("another") and not attempts.due("run")
    attempts.moved("run")
    assert attempts.due("run") and attempts.failed("run") is False
