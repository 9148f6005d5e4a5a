"""Live views and followed logs, which continue through a coordinator's restarts."""

import json
import time
from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from pubswap_protocol.bounds import escaped, printable
from pubswap_protocol.errors import PubSwapError
from pubswap_protocol.messages import Event, StepPoint
from pubswap_protocol.schedule import public_updates

if TYPE_CHECKING:
    from pubswap_client.coordinator.client import CoordinatorClient

T = TypeVar("T")
EVERY = 2.0  # seconds


def repeated(read: Callable[[], T]) -> Iterator[T | PubSwapError]:
    """The result of `read` every 2 s, or its error if that is retryable.

    An error of the first call is raised, because an address that never answered may be wrong.
    """
    yield read()
    while True:
        time.sleep(EVERY)
        try:
            yield read()
        except PubSwapError as error:
            if not error.retryable:
                raise
            yield error


def watch(read: Callable[[], tuple[RenderableType, bool]], console: Console) -> None:
    """Show the result of `read` until its flag says that it is the last; say if it is stale."""
    shown: RenderableType = ""
    at = datetime.now()
    screen = console.is_terminal
    with Live(console=console, screen=screen, auto_refresh=False) as live:
        for result in repeated(read):
            if isinstance(result, PubSwapError):
                stale = f"As of {at:%H:%M:%S}; no answer since: {result.detail} Trying again."
                live.update(Group(Text(stale, style="bold red"), shown), refresh=True)
                continue
            (shown, last), at = result, datetime.now()
            live.update(shown, refresh=True)
            if last:
                break
    if screen:  # the alternate screen is gone with what it showed
        console.print(shown)


def lines(
    api: "CoordinatorClient",
    run: str,
    follow: bool,
    as_json: bool,
    kinds: Collection[str] = (),
    member: str | None = None,
) -> Iterator[str]:
    """The log's lines, all or of some kinds or one member; with `follow`, until the run ends."""
    seen = set[str]()
    for event in events(api, run, follow, partial(typer.echo, err=True)):
        seen.add(event.kind)
        of_member = member is None or member == event.details.get("member")
        if of_member and (not kinds or event.kind in kinds):
            yield escaped(event.model_dump_json()) if as_json else line(event)
    for kind in sorted({*kinds} - seen):
        present = printable(", ".join(sorted(seen)))
        typer.echo(f"The log has no event of the kind {kind}; it has: {present}.", err=True)


def events(
    api: "CoordinatorClient", run: str, follow: bool, on_silence: Callable[[str], None]
) -> Iterator[Event]:
    """The log; with `follow`, through restarts of the coordinator, until the run has ended.

    `on_silence` is called with the reason once for each outage.
    """
    cursor, silent = 0, False
    while page := api.events(run, cursor).events:
        yield from page
        cursor = page[-1].id
    if not follow:
        return

    def read() -> tuple[list[Event], bool]:
        # In this order, because an ended run's last event is already in the log.
        ended = api.run(run).state.ended
        return api.events(run, cursor).events, ended

    for result in repeated(read):
        if isinstance(result, PubSwapError):
            if not silent:
                on_silence(f"{result.detail} Trying again.")
            silent = True
            continue
        silent = False
        page, ended = result
        yield from page
        if page:
            cursor = page[-1].id
        elif ended:
            return


def step_rows(api: "CoordinatorClient", run: str, member: str | None) -> Iterator[str]:
    """A header and the run's steps as CSV, of all members or of one; no field needs quotes."""
    view = api.run(run)
    public = set(public_updates(view.settings))
    figures = [name for name in StepPoint.model_fields if name not in ("member", "round", "step")]
    yield ",".join(["member", "round", "step", "public", *figures])
    for point in api.steps(view.id):
        if member in (None, point.member):
            place = [point.member, point.round, point.step, int(point.step in public)]
            values = [getattr(point, name) for name in figures]
            yield ",".join("" if value is None else str(value) for value in [*place, *values])


def line(event: Event) -> str:
    """One event for people: 2026-11-23 02:47:01 UTC  update  member alpha, round 3."""
    details = ", ".join(f"{key} {_text(value)}" for key, value in event.details.items())
    return printable(f"{event.at.astimezone():%F %T %Z}  {event.kind:18}  {details}".rstrip())


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
