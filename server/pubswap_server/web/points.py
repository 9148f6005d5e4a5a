"""The points of a run's charts, for `static/charts.js`, which draws whatever it is given.

A group of charts shares its x axis and its members. What is sent is bounded: a few members, the
last rounds, and of long rounds each n-th step.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy.orm import Session

from pubswap_protocol.command_line.amounts import wilson
from pubswap_server.database.tables import RunRow
from pubswap_server.runs import history, members
from pubswap_server.runs.history import CurvePoint
from pubswap_server.runs.progress import steps
from pubswap_server.runs.progress.steps import StepRetention
from pubswap_server.runs.state import ENDED

MEMBERS_DRAWN = 16
STEPS_DRAWN = 300  # of a member

Values = list[float | None]
Chart = dict[str, Any]
"""`title`, `unit`, and `series` by name; `low`, `high` and `n` belong to the first series."""

BY_STEP = {
    "Reward": ("reward", "mean score"),
    "KL to the base model": ("kl", "nats"),
    "Tokens per response": ("response_tokens", "tokens"),
    "Speed": ("tokens_per_second", "tokens/s"),
}
BY_ROUND = {
    "pass@1": ("pass_at_1", "share"),
    "Mean score of test responses": ("score", ""),
    "Reward": ("reward", "mean score"),
    "KL to the base model": ("kl", "nats"),
    "Tokens per response": ("response_tokens", "tokens"),
    "Groups with equal rewards": ("zero_variance_share", "share"),
    "Replaced responses": ("replaced_share", "share"),
    "Drift between clients": ("drift", "L2 norm"),
    "Privacy spent": ("epsilon", "epsilon"),
}
NOT_IN_ALL_RUNS = ("epsilon", "score")
TIMES: dict[str, Callable[[CurvePoint], float | None]] = {
    "sampling": lambda point: point.means.sampling_seconds,
    "update": lambda point: (point.means.seconds or 0.0) - (point.means.sampling_seconds or 0.0),
    "waiting": lambda point: point.means.waiting_seconds,
    "transfer": lambda point: point.means.transfer_seconds,
}


def read_points(session: Session, run: RunRow) -> list[dict[str, Any]]:
    """The groups of charts that have points: inside the last rounds, and by round."""
    groups = [
        by_step(session, run, members.client_names(session, run.id)),
        by_round(history.curves(session, run.id)),
    ]
    if run.state in ENDED:
        groups.reverse()
    return [group for group in groups if group["charts"]]


def by_step(session: Session, run: RunRow, clients: Sequence[str]) -> dict[str, Any]:
    """A curve for each of these members, by the steps of the run counted through."""
    tau = run.settings.local_steps
    names = clients[:MEMBERS_DRAWN]
    every = StepRetention.of(run.settings).every
    every *= -(-tau // (every * STEPS_DRAWN))
    first = run.round - max(1, STEPS_DRAWN * every // tau) + 1
    rows = steps.curves(session, run.id, names, first, every)
    x = sorted({(row.round - 1) * tau + row.step for row in rows})
    place = {step: number for number, step in enumerate(x)}
    curves: dict[str, dict[str, Values]] = {
        figure: defaultdict(lambda: [None] * len(x)) for figure, _ in BY_STEP.values()
    }
    for row in rows:
        for figure, series in curves.items():
            if (value := getattr(row, figure)) is not None:
                series[row.member][place[(row.round - 1) * tau + row.step]] = value
    return {
        "title": "Inside the last rounds",
        "of": "step",
        "steps": tau,
        "x": x,
        "names": names,
        "more": len(clients) - len(names),
        "charts": [
            {"title": title, "unit": unit, "series": curves[figure]}
            for title, (figure, unit) in BY_STEP.items()
            if curves[figure]
        ],
    }


def by_round(rounds: Sequence[CurvePoint]) -> dict[str, Any]:
    """A chart of each measure that some round has; pass@1 with Wilson's interval."""
    names = [name for name, _ in BY_ROUND.values()]
    rounds = [point for point in rounds if any(point.value(name) is not None for name in names)]
    charts: list[Chart] = []
    for title, (name, unit) in BY_ROUND.items():
        values = [point.value(name) for point in rounds]
        if any(value is not None for value in values):
            charts.append({"title": title, "unit": unit, "series": {title: values}})
            if name == "pass_at_1":
                charts[-1] |= _intervals(rounds)
    timed = [point for point in rounds if point.means.seconds is not None]
    if timed:
        taken = {
            part: [seconds(point) if point in timed else None for point in rounds]
            for part, seconds in TIMES.items()
        }
        charts.append({"title": "Time of a round", "unit": "s", "series": taken})
    x = [point.round for point in rounds]
    return {"title": "By round", "of": "round", "x": x, "names": [], "more": 0, "charts": charts}


def _intervals(rounds: Sequence[CurvePoint]) -> dict[str, Any]:
    both = [
        wilson(point.pass_at_1, point.problems)
        if point.pass_at_1 is not None and point.problems
        else (None, None)
        for point in rounds
    ]
    low, high = zip(*both, strict=True)
    return {"low": low, "high": high, "n": [point.problems for point in rounds]}


def missing(rounds: Sequence[CurvePoint]) -> list[str]:
    """The titles of charts by round that have no point yet, of those that every run will have."""
    return [
        title
        for title, (name, _) in BY_ROUND.items()
        if name not in NOT_IN_ALL_RUNS and all(point.value(name) is None for point in rounds)
    ]
