"""SIGTERM, Ctrl-C and a deadline's SIGALRM end a command at once and cleanly.

Files are replaced whole, and only the checkpoint that is being written is waited for: the signal
raises wherever the main thread is, and `with` blocks clean up.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from pubswap_protocol.command_line.statuses import AGAIN, INTERRUPTED


class Stop(BaseException):
    """A signal asked this process to end; not an Exception, so that nothing handles it midway."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)


def _raise(number: int, frame: FrameType | None) -> None:
    # A second signal must not interrupt the cleaning up after the first.
    for name in _SIGNALS:
        signal.signal(name, signal.SIG_IGN)
    raise Stop(number)


@contextmanager
def until_stopped(end: float | None = None) -> Iterator[None]:
    """Run the block until it ends, or a signal asks to stop, which ends the command: status 130.

    At the time `end` of time.monotonic(), SIGALRM asks: status 75. Of several processes the first
    has the alarm, and ends the others.
    """
    before = {name: signal.signal(name, _raise) for name in _SIGNALS}
    if end is not None and os.environ.get("RANK", "0") == "0":
        signal.setitimer(signal.ITIMER_REAL, max(0.001, end - time.monotonic()))
    try:
        yield
    except Stop as stop:
        timely = stop.number == signal.SIGALRM
        why = "Time is up" if timely else "Stopped"
        typer.echo(f"{why}. Repeat the command to continue where it stopped.", err=True)
        raise SystemExit(AGAIN if timely else INTERRUPTED) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for name, handler in before.items():
            signal.signal(name, handler)
