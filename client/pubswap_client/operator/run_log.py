"""A run's append-only log as lines: all of it, or on and on."""

import json
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial

import typer

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.operator.watching import repeated
from pubswap_protocol.errors import PubSwapError
from pubswap_protocol.messages import Event


def lines(
    api: CoordinatorClient,
    run: str,
    follow: bool,
    as_json: bool,
    kinds: Collection[str] = (),
    member: str | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """The log's lines, of some kinds and one member, or all; followed, until the run has ended."""
    for event in events(api, run, follow, partial(typer.echo, err=True), pause):
        of_member = member is None or member == event.details.get("member")
        if of_member and (not kinds or event.kind in kinds):
            yield event.model_dump_json() if as_json else line(event)


def events(
    api: CoordinatorClient,
    run: str,
    follow: bool,
    on_silence: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[Event]:
    """The log; followed, through restarts of the coordinator, until the run has ended.

    `on_silence` is told why nothing is heard, once for each time.
    """
    after, silent = 0, False
    while page := api.events(run, after).events:
        yield from page
        after = page[-1].id
    if not follow:
        return

    def read() -> tuple[list[Event], bool]:
        # In this order: what ends a run is in the log when the run has ended.
        ended = api.run(run).state.ended
        return api.events(run, after).events, ended

    for found in repeated(read, pause):
        if isinstance(found, PubSwapError):
            if not silent:
                on_silence(f"{found.detail} Trying again.")
            silent = True
            continue
        silent = False
        page, ended = found
        yield from page
        if page:
            after = page[-1].id
        elif ended:
            return


def line(event: Event) -> str:
    """One event for people: 2026-11-23 02:47:01  update  member alpha, round 3."""
    details = ", ".join(f"{key} {_text(value)}" for key, value in event.details.items())
    return f"{event.at.astimezone():%F %T}  {event.kind:18}  {details}".rstrip()


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
