"""The read-only pages, and the parts of a run's page that are fetched again when it changes."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session

from pubswap_protocol.bounds import MAX_COUNT, Word
from pubswap_protocol.command_line.keys import flat
from pubswap_protocol.errors import NotFound, PubSwapError
from pubswap_protocol.messages import RunState, RunView
from pubswap_protocol.terms import given
from pubswap_server.database.tables import RunRow
from pubswap_server.http.dependencies import Number, RunAccess, ServicesDep, SwapNumber
from pubswap_server.http.routes.runs import get_adapter
from pubswap_server.runs import evaluations, events, history, members, runs
from pubswap_server.runs.activity import read_activity, read_end, read_summary
from pubswap_server.runs.auth import Operator
from pubswap_server.runs.state import ENDED
from pubswap_server.web import acts
from pubswap_server.web.access import OperatorSession, SessionDep, WebRun, WebSession
from pubswap_server.web.charts import bars, chart, sparkline
from pubswap_server.web.rendering import HEADERS, PageRoute, page
from pubswap_server.web.responses import read_stored, shown

Values = dict[str, Any]

router = APIRouter(route_class=PageRoute, include_in_schema=False)

RUNS_A_PAGE = 50
EVENTS_SHOWN = 20
MEMBERS_SHOWN = 200
ROUNDS_BY_STEP = 5
ROUNDS_BY_PART = 10
ROUNDS_SHOWN = 3  # with their public steps, besides the one under way
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
            listed.append((view, sparkline(scores), read_activity(database, row)))
        return listed

    listed = await services.database.read(work)
    more = listed[-1][0].id if len(listed) == RUNS_A_PAGE else None
    return page("runs.html", session=session, listed=listed, more=more)


def _activity(database: Session, row: RunRow) -> Values:
    return {
        "activity": read_activity(database, row),
        "acts": {name: acts.ACTS[name] for name in acts.possible(row)},
        "end": read_end(database, row),
        "summary": read_summary(database, row) if row.state == RunState.FINISHED else None,
    }


def _members(database: Session, row: RunRow) -> Values:
    more = max(0, members.count(database, row.id) - MEMBERS_SHOWN)
    return {"members": members.views(database, row.id, MEMBERS_SHOWN), "more_members": more}


CURVES = {
    "pass@1": "pass_at_1",
    "Mean score of test responses": "score",
    "Reward": "reward",
    "KL to the base model": "kl",
    "Tokens per response": "response_tokens",
    "Share of groups with equal rewards": "zero_variance_share",
    "Share of replaced responses": "replaced_share",
    "Drift from the mean": "drift",
    "Privacy spent, epsilon": "epsilon",
}


def _curves(database: Session, row: RunRow) -> Values:
    """A chart by round for each measure, and each topic's pass@1, first and last."""
    rounds, charts = history.curves(database, row.id), {}
    for title, name in CURVES.items():
        points = [(float(point.round), point.value(name)) for point in rounds]
        measured = [(round_, value) for round_, value in points if value is not None]
        if measured or name not in ("epsilon", "score"):  # which not all runs have
            charts[title] = chart(title, measured)
    steps, by_step = row.settings.local_steps, []
    for round_, rewards in history.step_rewards(database, row.id, row.round - 1 - ROUNDS_BY_STEP):
        by_step += [(float((round_ - 1) * steps + step), reward) for step, reward in rewards]
    charts["Reward by step, last rounds"] = chart("Reward", by_step, "step")
    first, last = history.first_and_last_evaluation(database, row.id)
    first_shares, last_shares = (each.by_topic if each else {} for each in (first, last))
    topics = [
        (topic, first_shares.get(topic), share) for topic, share in sorted(last_shares.items())
    ]
    return {"charts": charts, "topics": topics, "times": bars(_times(rounds[-ROUNDS_BY_PART:]))}


def _times(rounds: Sequence[history.CurvePoint]) -> list[tuple[str, Values]]:
    """Each round's time by part, averaged over its members."""
    times = []
    for point in rounds:
        means = point.means
        if means.seconds is not None and means.sampling_seconds is not None:
            parts = {
                "sampling": means.sampling_seconds,
                "update": max(0.0, means.seconds - means.sampling_seconds),
                "waiting": means.waiting_seconds or 0.0,
                "transfer": means.transfer_seconds or 0.0,
            }
            times.append((f"round {point.round}", parts))
    return times


def _steps(database: Session, row: RunRow) -> Values:
    after, settings = max(-1, row.round - ROUNDS_SHOWN), row.settings
    return {"rounds": history.page(database, row.id, settings, after, ROUNDS_SHOWN + 1)[::-1]}


# In the page's order, each with the values that its template needs besides the run.
PARTS: dict[str, Callable[[Session, RunRow], Values]] = {
    "activity": _activity,
    "members": _members,
    "curves": _curves,
    "steps": _steps,
    "log": lambda database, row: {"events": events.last(database, row.id, EVENTS_SHOWN)},
}


@router.get("/runs/{run}")
async def show_run(run: WebRun, session: SessionDep) -> Response:
    """A run's page."""
    return page("run.html", **await _read(run, session, *PARTS), parts=list(PARTS))


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
    return await run.read(work)


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
            yield _event("members")
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
async def show_settings(run: WebRun, session: SessionDep) -> Response:
    """All settings; those that differ from the defaults are marked."""

    def work(database: Session, row: RunRow) -> Values:
        settings = row.settings
        return {
            "run": runs.view(database, row),
            "differing": flat(given(settings)),
            "all": flat(settings.model_dump(mode="json")),
        }

    return page("settings.html", session=session, **await run.read(work))


@router.get("/runs/{run}/rounds/{round}/steps/{swap}")
async def show_exchange(
    run: WebRun,
    session: SessionDep,
    round: Number,
    swap: SwapNumber,
    prompt: Annotated[int, Query(ge=0, le=MAX_COUNT)] = 0,
) -> Response:
    """A public step's prompt, and the responses of all organisations to it, as inert text."""
    stored = await run.read(partial(read_stored, round_=round, swap=swap, prompt=prompt))
    values = await to_thread.run_sync(shown, run.services, stored, prompt)
    view = await run.read(runs.view)
    return page("exchange.html", session=session, run=view, round=round, swap=swap, **values)


@router.get("/runs/{run}/rounds/{round}/responses")
async def show_responses(run: WebRun, session: OperatorSession, round: Number) -> Response:
    """Responses to the test set, as inert text. A viewer may belong to a member, so not for it."""

    def work(database: Session, row: RunRow) -> Values:
        evaluation = evaluations.read(database, row, round)
        return {"run": runs.view(database, row), "evaluation": evaluation}

    return page("evaluation.html", session=session, round=round, **await run.read(work))


@router.get("/runs/{run}/adapters/{which}")
async def download_adapter(run: WebRun, _: OperatorSession, which: Word) -> Response:
    """The JSON API's response, as a file download."""
    reply = await get_adapter(run, which)
    name = f"adapter-round-{reply.headers.get('X-PubSwap-Round', which)}.safetensors"
    reply.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return reply
