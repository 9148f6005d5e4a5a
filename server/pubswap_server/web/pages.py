"""The read-only pages, and the parts of a run's page that are fetched again when it changes."""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse, StreamingResponse
from sqlalchemy.orm import Session

from pubswap_protocol.bounds import MAX_COUNT, Word
from pubswap_protocol.command_line.amounts import counted
from pubswap_protocol.command_line.keys import flat
from pubswap_protocol.errors import NotFound, PubSwapError
from pubswap_protocol.messages import RunState, RunView, SetKind
from pubswap_protocol.terms import given
from pubswap_server.database.tables import RunRow, SetRow
from pubswap_server.exchange import exchanges
from pubswap_server.http.dependencies import Number, PublicStepNumber, RunAccess, ServicesDep
from pubswap_server.http.routes.runs import get_adapter
from pubswap_server.runs import evaluations, events, history, members, runs
from pubswap_server.runs.activity import read_activity, read_end, read_summary
from pubswap_server.runs.auth import Operator
from pubswap_server.runs.concerns import read_concerns
from pubswap_server.runs.state import ENDED
from pubswap_server.web import actions
from pubswap_server.web.access import OperatorSession, SessionDep, WebRun, WebSession
from pubswap_server.web.charts import small_chart
from pubswap_server.web.meanings import meanings, meanings_of_chosen
from pubswap_server.web.points import missing, read_points
from pubswap_server.web.progress import read_progress
from pubswap_server.web.rendering import HEADERS, PageRoute, page
from pubswap_server.web.responses import read_stored, shown

Values = dict[str, Any]

router = APIRouter(route_class=PageRoute, include_in_schema=False)

RUNS_A_PAGE = 50
EVENTS_SHOWN = 20
ROUTINE = ("exchange began", "exchange ended", "responses")  # several in each public step
MEMBERS_SHOWN = 200
ROUNDS_SHOWN = 3  # the last, with their public steps; fewer if these have many numbers
LOOK_SECONDS = 3.0  # between refreshes of members' progress, because progress is not an event
STREAM_SECONDS = 600.0  # then the page connects again, so its session is checked again


@router.get("/")
async def show_runs(
    session: SessionDep, services: ServicesDep, after: Word | None = None
) -> Response:
    """The runs, newest first."""

    def work(database: Session) -> list[tuple[RunView, Any, Any]]:
        listed = []
        for view in runs.page(database, after, RUNS_A_PAGE):
            row = database.get_one(RunRow, view.id)
            points = history.curves(database, view.id)
            scores = [each.pass_at_1 for each in points if each.pass_at_1 is not None]
            listed.append((view, small_chart(scores), read_activity(database, row)))
        return listed

    listed = await services.database.read(work)
    more = listed[-1][0].id if len(listed) == RUNS_A_PAGE else None
    return page("runs.html", session=session, listed=listed, more=more)


def _activity(database: Session, row: RunRow) -> Values:
    return {
        "activity": read_activity(database, row),
        "concerns": read_concerns(database, row),
        "readable": evaluations.readable(database, row.id),
        "acts": {name: actions.ACTIONS[name] for name in actions.possible(row)},
        "end": read_end(database, row),
        "summary": read_summary(database, row) if row.state == RunState.FINISHED else None,
    }


def _members(database: Session, row: RunRow) -> Values:
    more = max(0, members.count(database, row.id) - MEMBERS_SHOWN)
    return {"members": members.views(database, row.id, MEMBERS_SHOWN), "more_members": more}


def _results(database: Session, row: RunRow) -> Values:
    """Each topic's pass@1, first and last, and the charts that have no point yet."""
    test = database.get(SetRow, (row.id, SetKind.TEST))
    return {
        "missing": missing(history.curves(database, row.id)),
        "evaluations": history.first_and_last_evaluation(database, row.id),
        "readable": evaluations.readable(database, row.id),
        "test": test and test.digest,
    }


def _steps(database: Session, row: RunRow) -> Values:
    count = history.rounds_a_page(database, row.id, row.settings, ROUNDS_SHOWN)
    after = max(-1, row.round - count)
    return {
        "rounds": history.page(database, row.id, row.settings, after, count)[::-1],
        "kept": exchanges.kept_steps(database, row.id, after + 1),
        "readable": evaluations.readable(database, row.id),
    }


def _log(database: Session, row: RunRow) -> Values:
    return {"events": events.last(database, row.id, EVENTS_SHOWN, ROUTINE)}


# In the page's order, each with the values that its template needs besides the run.
PARTS: dict[str, Callable[[Session, RunRow], Values]] = {
    "activity": _activity,
    "progress": read_progress,
    "results": _results,
    "members": _members,
    "steps": _steps,
    "log": _log,
}


LIVE = ("progress", "members")  # parts that change with heartbeats, which are no events


@router.get("/runs/{run}")
async def show_run(run: WebRun, session: SessionDep) -> Response:
    """A run's page; the operator's form for its files while it is a draft."""
    draft = None if session.viewer else await run.read(_draft)
    if draft is not None:
        return page("draft.html", session=session, **draft)
    return page("run.html", **await _read(run, session, *PARTS), parts=list(PARTS))


def _draft(database: Session, row: RunRow) -> Values | None:
    """What the form needs; None once the run is open."""
    if row.state != RunState.CREATED:
        return None
    sets = runs.sets_of(database, row)
    counts = {kind: counted(each.problems, "problem") for kind, each in sets.items()}
    files = (
        ("tokenizer", "The base model's tokenizer.json", "sent" if row.tokenizer else ""),
        (SetKind.PUBLIC, "The public set (JSONL)", counts.get(SetKind.PUBLIC, "")),
        (SetKind.TEST, "The test set (JSONL)", counts.get(SetKind.TEST, "")),
    )
    differing = flat(given(row.settings))
    return {
        "run": runs.view(database, row),
        "files": files,
        "complete": all(has for *_, has in files),
        "differing": differing,
        "meanings": meanings_of_chosen(differing),
    }


@router.get("/runs/{run}/parts/{part}")
async def show_part(run: WebRun, session: SessionDep, part: Word) -> Response:
    """A part of a run's page."""
    if part not in PARTS:
        raise NotFound(f"A run's page has no part {part!r}.")
    return page(f"{part}.html", **await _read(run, session, part))


async def _read(run: RunAccess[Operator], session: WebSession, *parts: str) -> Values:
    def work(database: Session, row: RunRow) -> Values:
        values = {"session": session, "run": runs.view(database, row)}
        for part in parts:
            values |= PARTS[part](database, row)
        return values

    await run.services.heartbeats.flush()
    values = await run.read(work)
    if values.get("evaluations"):
        values["counts"] = await to_thread.run_sync(_problems_by_topic, run, values["test"])
    return values


def _problems_by_topic(run: RunAccess[Operator], test: str) -> Mapping[str, int]:
    """The test set's, if it can be read: without it, shares have no interval."""
    try:
        return run.services.topics(test)
    except PubSwapError:
        return {}


@router.get("/runs/{run}/points")
async def show_points(run: WebRun, _: SessionDep) -> Response:
    """The points of the charts, as JSON."""
    await run.services.heartbeats.flush()
    return JSONResponse(await run.read(read_points), headers=HEADERS)


@router.get("/runs/{run}/stream")
async def stream(run: WebRun) -> StreamingResponse:
    """Server-sent events that name the changed parts of the page, without content."""
    name = await run.read(lambda session, row: row.id)  # an unknown run is refused here
    headers = {**HEADERS, "X-Accel-Buffering": "no"}
    return StreamingResponse(_changes(run, name), media_type="text/event-stream", headers=headers)


async def _changes(run: RunAccess[Operator], name: str) -> AsyncIterator[str]:
    changes, until, seen = run.services.changes, time.monotonic() + STREAM_SECONDS, -1
    while time.monotonic() < until and not changes.closed:

        def is_new(latest: tuple[int, bool], seen: int = seen) -> bool:
            return latest[0] != seen

        try:
            last, ended = await changes.until(name, partial(run.read, _last), is_new, LOOK_SECONDS)
        except PubSwapError:  # the run was deleted, or the database is down: the page retries
            return
        if last != seen:
            yield "".join(map(_event, PARTS))
        elif not ended:
            yield "".join(map(_event, LIVE))
        seen = last


def _last(session: Session, row: RunRow) -> tuple[int, bool]:
    """The last event's id, and whether the run has ended."""
    shown = events.last(session, row.id, 1)
    return (shown[0].id if shown else 0), row.state in ENDED


def _event(part: str) -> str:
    return f"event: {part}\ndata: \n\n"


@router.get("/runs/{run}/log")
async def show_log(
    run: WebRun,
    session: SessionDep,
    kind: Annotated[str, Query(max_length=100)] = "",
    after: Annotated[int, Query(ge=0, le=MAX_COUNT)] = 0,
) -> Response:
    """The append-only log, oldest first."""

    def work(database: Session, row: RunRow) -> Values:
        return {
            "run": runs.view(database, row),
            "kinds": events.kinds(database, row.id),
            "events": events.events_after(database, row.id, after, kind or None),
        }

    values = await run.read(work)
    return page("log_page.html", session=session, kind=kind, page_size=events.PAGE, **values)


@router.get("/runs/{run}/settings")
async def show_settings(run: WebRun, session: SessionDep, only: Word = "") -> Response:
    """All settings with their meanings, or `only` those that are "set" to another than default."""

    def work(database: Session, row: RunRow) -> Values:
        all_ = flat(row.settings.model_dump(mode="json"))
        return {
            "run": runs.view(database, row),
            "differing": flat(given(row.settings)),
            "all": all_,
            "meanings": meanings(all_),
        }

    return page("settings.html", session=session, only=only, **await run.read(work))


@router.get("/runs/{run}/rounds/{round}/steps/{public_step}")
async def show_exchange(
    run: WebRun,
    session: SessionDep,
    round: Number,
    public_step: PublicStepNumber,
    prompt: Annotated[int, Query(ge=0, le=MAX_COUNT)] = 0,
) -> Response:
    """A public step's prompt, and the responses of all organisations to it, as inert text."""
    stored = await run.read(
        partial(read_stored, round_=round, public_step=public_step, prompt=prompt)
    )
    values = await to_thread.run_sync(shown, run.services, stored, prompt)
    view = await run.read(runs.view)
    return page(
        "exchange.html", session=session, run=view, round=round, public_step=public_step, **values
    )


@router.get("/runs/{run}/rounds/{round}/responses")
async def show_responses(
    run: WebRun,
    session: OperatorSession,
    round: Number,
    topic: Word = "",
) -> Response:
    """Responses to the test set, as inert text, of all topics or of one.

    A viewer may belong to a member, so not for it.
    """

    def work(database: Session, row: RunRow) -> Values:
        return {
            "evaluation": evaluations.read(database, row, round),
            "run": runs.view(database, row),
            "readable": evaluations.readable(database, row.id),
        }

    return page("evaluation.html", session=session, round=round, only=topic, **await run.read(work))


@router.get("/runs/{run}/adapters/{which}")
async def download_adapter(run: WebRun, _: OperatorSession, which: Word) -> Response:
    """The JSON API's response, as a file download."""
    reply = await get_adapter(run, which)
    name = f"adapter-round-{reply.headers.get('X-PubSwap-Round', which)}.safetensors"
    reply.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return reply
