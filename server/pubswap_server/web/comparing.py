"""Runs side by side: pass@1 by round and by bytes, and the settings in which they differ."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from pubswap_protocol.bounds import Word
from pubswap_protocol.command_line.keys import flat
from pubswap_protocol.errors import Invalid
from pubswap_protocol.messages import RunView
from pubswap_server.database.tables import RunRow
from pubswap_server.http.dependencies import ServicesDep
from pubswap_server.runs import history, runs, traffic
from pubswap_server.runs.auth import Operator
from pubswap_server.services import Services
from pubswap_server.web.access import SessionDep
from pubswap_server.web.meanings import meanings
from pubswap_server.web.rendering import HEADERS, PageRoute, page

router = APIRouter(route_class=PageRoute, include_in_schema=False)

MOST = 8  # colours of the charts
UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))

Series = Mapping[str, Mapping[float, float]]
Chosen = Annotated[Sequence[Word], Query(alias="run")]


@dataclass(frozen=True, slots=True)
class Compared:
    """A run under a name that no other has, its facts by dotted key, and its pass@1.

    pass@1 is that of its evaluated rounds; `sent` has the bytes of all members until then, if each
    round had as many: adding up a long run's own would take seconds.
    """

    name: str
    view: RunView
    facts: Mapping[str, Any]
    rounds: Sequence[int]
    pass_at_1: Sequence[float]
    sent: Sequence[int]


def read_compared(session: Session, row: RunRow, alone: bool) -> Compared:
    """A run; `alone` if no other of those compared has its name."""
    run = runs.view(session, row)
    digests = {f"{kind} set": each.digest for kind, each in runs.sets_of(session, row).items()}
    model = {"base model": run.model.source, "base model's weights": run.model.weights_digest}
    points = [p for p in history.curves(session, run.id) if p.pass_at_1 is not None]
    total = traffic.total(session, run.id)
    return Compared(
        name=run.name if alone else run.id,
        view=run,
        facts=model | digests | flat(run.settings.model_dump(mode="json")),
        rounds=[point.round for point in points],
        pass_at_1=[point.pass_at_1 for point in points if point.pass_at_1 is not None],
        sent=[total * point.round // max(1, run.round) for point in points],
    )


def groups_of(curves: Sequence[Compared]) -> list[dict[str, Any]]:
    """What `static/charts.js` draws; without the runs that were never evaluated."""
    most = max((size for curve in curves for size in curve.sent), default=0)
    unit, factor = next((each for each in UNITS if most >= each[1]), ("bytes", 1.0))
    by_round: Series = {
        curve.name: dict(zip(curve.rounds, curve.pass_at_1, strict=True)) for curve in curves
    }
    by_bytes: Series = {
        curve.name: {
            size / factor: score for size, score in zip(curve.sent, curve.pass_at_1, strict=True)
        }
        for curve in curves
    }
    both = (
        ("By round", "round", by_round),
        (f"By {unit} sent and received by all members", unit, by_bytes),
    )
    return [_group(title, of, series) for title, of, series in both if any(series.values())]


def _group(title: str, of: str, series: Series) -> dict[str, Any]:
    x = sorted({place for points in series.values() for place in points})
    values = {name: [points.get(place) for place in x] for name, points in series.items()}
    chart = {"title": "pass@1", "unit": "share", "series": values}
    return {
        "title": title,
        "of": of,
        "after": of != "round",  # 12 MB, but round 12
        "legend": "Runs",
        "x": x,
        "names": list(series),
        "more": 0,
        "charts": [chart],
    }


def differing(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The settings that are not the same everywhere, by dotted key; None where there is none."""
    keys = dict.fromkeys(key for each in settings for key in each)
    values = {key: [each.get(key) for each in settings] for key in keys}
    return {key: row for key, row in values.items() if any(one != row[0] for one in row)}


async def _compared(services: Services, chosen: Sequence[str]) -> list[Compared]:
    if not 2 <= len(dict.fromkeys(chosen)) <= MOST:
        raise Invalid(f"Choose two to {MOST} runs to compare, in the list of runs.")

    def work(session: Session) -> list[Compared]:
        found = {run.id: run for run in (runs.find(session, one, Operator()) for one in chosen)}
        names = Counter(row.name for row in found.values())
        return [read_compared(session, row, names[row.name] == 1) for row in found.values()]

    return await services.database.read(work)


@router.get("/compare")
async def show_comparison(
    session: SessionDep, services: ServicesDep, chosen: Chosen = ()
) -> Response:
    """Two or more runs, given as `run` in the query."""
    compared = await _compared(services, chosen)
    rows = differing([each.facts for each in compared])
    return page(
        "compare.html",
        session=session,
        compared=compared,
        differing=rows,
        meanings=meanings({key: values[0] for key, values in rows.items()}),
        query="&".join(f"run={each.view.id}" for each in compared),
    )


@router.get("/compare/points")
async def show_comparison_points(
    _: SessionDep, services: ServicesDep, chosen: Chosen = ()
) -> Response:
    """The points of the comparison's charts, as JSON."""
    return JSONResponse(groups_of(await _compared(services, chosen)), headers=HEADERS)
