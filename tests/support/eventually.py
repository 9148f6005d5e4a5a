"""Waiting for something to become true."""

import time
from collections.abc import Callable


def until(holds: Callable[[], bool], seconds: float = 120) -> None:
    """Return when the condition holds; fail if it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
