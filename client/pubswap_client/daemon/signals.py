"""SIGTERM, Ctrl-C, a closed terminal and a deadline's SIGALRM end a command at once and cleanly.

The signal raises wherever the main thread is, and `with` blocks clean up. Only a checkpoint that is
being written is waited for; files are replaced atomically, so none is left incomplete.
"""

import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import typer

from pubswap_protocol.command_line.statuses import AGAIN, INTERRUPTED


class StopSignal(BaseException):
    """A signal asked this process to end. Not an Exception, so that no handler swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGHUP)


def _raise(number: int, frame: FrameType | None = None) -> NoReturn:
    # A second signal must not interrupt the cleanup after the first.
    for name in _SIGNALS:
        signal.signal(name, signal.SIG_IGN)
    raise StopSignal(number)


def time_is_up() -> NoReturn:
    """End the block of `until_stopped` as its alarm does; called in the main thread."""
    _raise(signal.SIGALRM)


@contextmanager
def until_stopped(end: float = math.inf) -> Iterator[None]:
    """Run the block; a signal to stop ends the command with status 130.

    At `end`, a time of time.monotonic(), SIGALRM does so with status 75. Of several processes, only
    the first sets the alarm; it ends the others.
    """
    # A command begun with nohup goes on when its terminal is closed.
    kept = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    previous = {name: signal.signal(name, _raise) for name in _SIGNALS if name not in kept}
    if end < math.inf and os.environ.get("RANK", "0") == "0":
        signal.setitimer(signal.ITIMER_REAL, max(0.001, end - time.monotonic()))
    try:
        yield
    except StopSignal as stop:
        timely = stop.number == signal.SIGALRM
        why = "Time is up" if timely else "Stopped"
        typer.echo(f"{why}. Repeat the command to continue where it stopped.", err=True)
        raise SystemExit(AGAIN if timely else INTERRUPTED) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for name, handler in previous.items():
            signal.signal(name, handler)
