"""One stream of events for each page: the names of its parts that have changed, and no content."""

import time
from collections.abc import AsyncIterator
from functools import partial

from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session

from pubswap_server.database.tables import RunRow
from pubswap_server.http.dependencies import RunAccess
from pubswap_server.runs import events
from pubswap_server.runs.auth import Operator
from pubswap_server.runs.state import ENDED
from pubswap_server.web.access import WebRun
from pubswap_server.web.pages import PARTS
from pubswap_server.web.rendering import HEADERS, PageRoute

router = APIRouter(route_class=PageRoute, include_in_schema=False)

LOOK_SECONDS = 3.0  # between two looks, for what is no event: members' progress
STREAM_SECONDS = 600.0  # then the page asks again, with a session that is still good


@router.get("/runs/{run}/stream")
async def stream(run: WebRun) -> StreamingResponse:
    """Server-sent events named after parts of the page."""
    name = await run.read(lambda session, row: row.id)  # an unknown run is refused here
    headers = {**HEADERS, "X-Accel-Buffering": "no"}
    return StreamingResponse(_changes(run, name), media_type="text/event-stream", headers=headers)


async def _changes(run: RunAccess[Operator], name: str) -> AsyncIterator[str]:
    changes, until, seen = run.services.changes, time.monotonic() + STREAM_SECONDS, -1
    while time.monotonic() < until and not changes.closed:

        def is_new(found: tuple[int, bool], seen: int = seen) -> bool:
            return found[0] != seen

        last, ended = await changes.until(name, partial(run.read, _last), is_new, LOOK_SECONDS)
        if last != seen:
            yield "".join(map(_event, PARTS))
        elif not ended:
            yield _event("members")
        seen = last


def _last(session: Session, row: RunRow) -> tuple[int, bool]:
    """The last event's id, and whether the run has ended."""
    shown = events.last(session, row.id, 1)
    return (shown[0].id if shown else 0), row.state in ENDED


def _event(part: str) -> str:
    return f"event: {part}\ndata: \n\n"
