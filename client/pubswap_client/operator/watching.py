"""Looking again and again, through a coordinator's restarts: live views and followed logs."""

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from pubswap_protocol.errors import PubSwapError

T = TypeVar("T")
EVERY = 2.0  # seconds


def repeated(
    read: Callable[[], T], pause: Callable[[float], None] = time.sleep
) -> Iterator[T | PubSwapError]:
    """What is read, every 2 s, or the fault for which it could not be, if trying again may help.

    Raises what the first reading raises: an address that never answered is not waited for.
    """
    yield read()
    while True:
        pause(EVERY)
        try:
            yield read()
        except PubSwapError as error:
            if not error.retryable:
                raise
            yield error


def watch(
    read: Callable[[], tuple[RenderableType, bool]],
    console: Console,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Show what is read (and whether it is the last) until it is; say so when it is stale."""
    shown: RenderableType = ""
    at = datetime.now()
    screen = console.is_terminal
    with Live(console=console, screen=screen, auto_refresh=False) as live:
        for found in repeated(read, pause):
            if isinstance(found, PubSwapError):
                stale = f"As of {at:%H:%M:%S}; not heard since: {found.detail} Trying again."
                live.update(Group(Text(stale, style="bold red"), shown), refresh=True)
                continue
            (shown, last), at = found, datetime.now()
            live.update(shown, refresh=True)
            if last:
                break
    if screen:  # which is gone with what it showed
        console.print(shown)
