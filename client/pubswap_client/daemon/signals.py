"""SIGTERM and Ctrl-C end a command at once and cleanly.

Files are replaced whole, and only the checkpoint that is being written is waited for: the signal
raises wherever the main thread is, and `with` blocks clean up.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from pubswap_protocol.command_line.statuses import INTERRUPTED


class Stop(BaseException):
    """A signal asked this process to end; not an Exception, so that nothing handles it midway."""


def _raise(number: int, frame: FrameType | None) -> None:
    # A second signal must not interrupt the cleaning up after the first.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, signal.SIG_IGN)
    raise Stop


@contextmanager
def until_stopped() -> Iterator[None]:
    """Run the block until it ends or a signal asks to stop, which ends the command: status 130."""
    before = {name: signal.signal(name, _raise) for name in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except Stop:
        typer.echo("Stopped. The same command goes on where this one was.", err=True)
        raise SystemExit(INTERRUPTED) from None
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
