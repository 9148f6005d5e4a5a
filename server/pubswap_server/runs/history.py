"""The results of a run's rounds, counted by the database and read in pages."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import fmean, median

from sqlalchemy import false, func, select
from sqlalchemy.orm import Session

from pubswap_protocol.bounds import MAX_SECONDS
from pubswap_protocol.command_line.amounts import first_few
from pubswap_protocol.errors import NotFound
from pubswap_protocol.messages import (
    Drift,
    Evaluation,
    PublicStepSummary,
    RoundMeans,
    RoundSummary,
    Score,
    Traffic,
)
from pubswap_protocol.schedule import public_steps_per_round
from pubswap_protocol.settings import RunSettings
from pubswap_server.database.tables import EventRow, PublicStepRow, RoundRow, RunRow, UpdateRow
from pubswap_server.runs import traffic

MAX_ROUNDS = 100
MAX_POINTS = 500  # of a chart
LAST = 6  # moments from which the end of a run is estimated, so five rounds
# Each exchange has two numbers for each client, and each topic has one, so a page of large rounds
# holds fewer rounds.
MAX_NUMBERS = 20_000


def numbers_of(session: Session, run: str, settings: RunSettings) -> int:
    """About how many numbers one round has on a page: of its exchanges, and of its topics."""
    query = select(RoundRow.evaluation).where(RoundRow.run_id == run)
    evaluated = query.where(RoundRow.evaluation.is_not(None)).order_by(RoundRow.round.desc())
    evaluation = session.scalar(evaluated.limit(1))
    topics = len(evaluation["by_topic"]) if evaluation else 0
    return max(1, topics + 2 * settings.clients * public_steps_per_round(settings))


def rounds_a_page(session: Session, run: str, settings: RunSettings, limit: int) -> int:
    """The rounds on a page: at most `limit`, and at least one."""
    return max(1, min(limit, MAX_NUMBERS // numbers_of(session, run, settings)))


def page(
    session: Session, run: str, settings: RunSettings, after: int, limit: int
) -> list[RoundSummary]:
    """The rounds after `after`, in order: at most `limit`, and at least one if there is one."""
    limit = rounds_a_page(session, run, settings, limit)
    query = select(RoundRow).where(RoundRow.run_id == run, RoundRow.round > after)
    rows = list(session.scalars(query.order_by(RoundRow.round).limit(limit)))
    if not rows:
        return []
    first, last = rows[0].round, rows[-1].round
    counted = (
        select(UpdateRow.round, func.count())
        .where(UpdateRow.run_id == run, UpdateRow.round.between(first, last))
        .where(UpdateRow.late.is_(False))
        .group_by(UpdateRow.round)
    )
    rows_of = session.execute(counted)
    updates = {round_: count for round_, count in rows_of}  # noqa: C416 - no pairs to mypy
    public_steps = _public_steps(session, run, first, last)
    sizes, gone_back = traffic.by_round(session, run, first, last), _rollbacks(session, run)
    return [
        RoundSummary(
            round=row.round,
            adapter=row.adapter,
            rollbacks=max((n for n, to in gone_back if to < row.round), default=0),
            updates=updates.get(row.round, 0),
            means=RoundMeans(**row.means) if row.means else None,
            drift=Drift(**row.drift) if row.drift else None,
            evaluation=Evaluation(**row.evaluation) if row.evaluation else None,
            public_steps=public_steps[row.round],
            traffic=sizes.get(row.round, Traffic()),
        )
        for row in rows
    ]


def _rollbacks(session: Session, run: str) -> list[tuple[int, int]]:
    """The run's rollbacks, counted from 1, and the round to which each went back."""
    if not session.get_one(RunRow, run).rollbacks:
        return []
    query = select(EventRow.details).where(EventRow.run_id == run, EventRow.kind == "rolled back")
    events = session.scalars(query.order_by(EventRow.id))
    return [(number, details["to"]) for number, details in enumerate(events, start=1)]


def _public_steps(
    session: Session, run: str, first: int, last: int
) -> dict[int, list[PublicStepSummary]]:
    summaries: dict[int, list[PublicStepSummary]] = defaultdict(list)
    rows = session.execute(
        select(PublicStepRow.round, PublicStepRow.summary)
        .where(PublicStepRow.run_id == run, PublicStepRow.round.between(first, last))
        .order_by(PublicStepRow.round, PublicStepRow.public_step)
    )
    for round_, summary in rows:
        if summary:
            summaries[round_].append(PublicStepSummary(**summary))
    return summaries


_PASS_AT_1 = RoundRow.evaluation["pass_at_1"].as_float()


def scores(session: Session, run: str) -> tuple[Score | None, Score | None]:
    """pass@1 of the last evaluated round, and of the best one, the earliest if tied."""
    warning = RoundRow.evaluation["warning"].as_string()
    problems = RoundRow.evaluation["problems"].as_integer()
    query = select(RoundRow.round, _PASS_AT_1, warning, problems).where(
        RoundRow.run_id == run, RoundRow.evaluation.is_not(None)
    )
    orders = ((RoundRow.round.desc(),), (_PASS_AT_1.desc(), RoundRow.round))
    rows = [session.execute(query.order_by(*order).limit(1)).first() for order in orders]
    latest, best = (
        Score(round=row[0], pass_at_1=row[1], warning=row[2], problems=row[3]) if row else None
        for row in rows
    )
    return latest, best


_ITS_OWN = ("pass_at_1", "score", "drift")


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A round's numbers for a chart; None where it has none."""

    round: int
    pass_at_1: float | None
    problems: int | None  # that pass@1 was measured on
    score: float | None
    drift: float | None
    means: RoundMeans

    def value(self, name: str) -> float | None:
        """The number with this name, here or in the means."""
        value: float | None = getattr(self if name in _ITS_OWN else self.means, name)
        return value


def curves(session: Session, run: str) -> list[CurvePoint]:
    """The last rounds in order, at most MAX_POINTS."""
    score, drift = RoundRow.evaluation["score"].as_float(), RoundRow.drift["pairwise"].as_float()
    problems = RoundRow.evaluation["problems"].as_integer()
    query = select(RoundRow.round, _PASS_AT_1, problems, score, drift, RoundRow.means)
    query = query.where(RoundRow.run_id == run).order_by(RoundRow.round.desc()).limit(MAX_POINTS)
    return [
        CurvePoint(round_, right, count, mean, away, RoundMeans(**means or {}))
        for round_, right, count, mean, away, means in session.execute(query).all()[::-1]
    ]


def last_round_ends(session: Session, run: str) -> list[datetime]:
    """Times when the last rounds ended, after the time when the first of them began.

    Rounds before a rollback are left out.
    """
    query = select(EventRow.kind, EventRow.at).where(
        EventRow.run_id == run, EventRow.kind.in_(("aggregated", "rolled back", "started"))
    )
    ends: list[datetime] = []
    for kind, at in session.execute(query.order_by(EventRow.id.desc()).limit(LAST)).all():
        ends.append(at)
        if kind != "aggregated":  # round 1 began here, or the round that was repeated
            break
    return ends[::-1]


def expected_end(
    ends: Sequence[datetime], remaining: int, now: datetime, share: float = 0.0
) -> datetime | None:
    """The expected time when `remaining` more rounds are done; None if nothing tells it, or if it
    is further away than a message may say.

    Before the end of any round, `share` of the first one is done. `ends` is the beginning of the
    first of the last rounds, followed by their ends in order. The median duration counts, so one
    long wait does not. A round that already takes longer is expected to end now.
    """
    took = [(later - sooner).total_seconds() for sooner, later in pairwise(ends)]
    if len(ends) == 1 and share > 0:
        took = [(now - ends[0]).total_seconds() / share]
    if not took or remaining < 1 or remaining * median(took) > MAX_SECONDS:
        return None
    usual = timedelta(seconds=median(took))
    return max(ends[-1] + usual, now) + (remaining - 1) * usual


def first_and_last_evaluation(session: Session, run: str) -> list[tuple[int, Evaluation]]:
    """The round and the evaluation of both, the same twice if there is one; [] without any."""
    query = select(RoundRow.round, RoundRow.evaluation).where(
        RoundRow.run_id == run, RoundRow.evaluation.is_not(None)
    )
    ends = (RoundRow.round, RoundRow.round.desc())
    rows = [session.execute(query.order_by(end).limit(1)).first() for end in ends]
    return [(row[0], Evaluation(**row[1])) for row in rows if row is not None]


def means_of(session: Session, run: str, round_: int, updates: Sequence[UpdateRow]) -> RoundMeans:
    """The means of a round's updates, and of its exchanges so far."""
    public_steps = _public_steps(session, run, round_, round_)[round_]
    shares = [
        share for public_step in public_steps for share in public_step.replaced_share.values()
    ]
    by_name = {
        name: [update.metrics[name] for update in updates if update.metrics.get(name) is not None]
        for name in RoundMeans.model_fields
    } | {"replaced_share": shares}
    spent = max(by_name.pop("epsilon"), default=None)
    means = {name: fmean(values) for name, values in by_name.items() if values}
    return RoundMeans(**means, epsilon=spent)


def chosen(session: Session, run: str, which: str) -> tuple[int, str]:
    """A round and its adapter: the `final`, the `best` or a numbered one; raises NotFound."""
    kept = select(RoundRow.round, RoundRow.adapter).where(
        RoundRow.run_id == run, RoundRow.adapter.is_not(None)
    )
    query = kept
    if which == "best":
        query = query.where(RoundRow.evaluation.is_not(None))
        query = query.order_by(_PASS_AT_1.desc(), RoundRow.round)
    elif which == "final":
        query = query.order_by(RoundRow.round.desc())
    elif which.isdecimal() and len(which) < 10:  # a database may refuse a larger round
        query = query.where(RoundRow.round == int(which))
    else:
        query = query.where(false())
    row = session.execute(query.limit(1)).first()
    if row is None:
        rounds = [round_ for round_, _ in session.execute(kept.order_by(RoundRow.round))]
        there = (
            f"give final, best (of evaluated rounds) or a round that is kept, {first_few(rounds)}"
        )
        raise NotFound(
            f"There is no adapter {which!r}; {there if rounds else 'the run has none yet'}."
        )
    return row[0], str(row[1])
