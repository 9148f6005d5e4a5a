"""Figures of members' steps, taken from their heartbeats: the curves inside a round.

A run keeps at most MAX_POINTS, however many members and steps it has: of long rounds every n-th
step, and as many of the last rounds as there is room for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from sqlalchemy import Row, delete, select, tuple_
from sqlalchemy.orm import Session

from pubswap_protocol.bounds import MAX_REPORTED_STEPS
from pubswap_protocol.messages import Progress, StepPoint
from pubswap_protocol.settings import RunSettings
from pubswap_server.database.engine import execute_many, inserting
from pubswap_server.database.tables import RunRow, StepRow

MAX_POINTS = 400_000  # of a run
MAX_POINTS_A_MEMBER = 10_000
PAGE = 5_000

FIGURES = ("reward", "loss", "kl", "response_tokens", "tokens_per_second")

Key = tuple[str, str, int, int]  # run, member, round and step
Points = Mapping[Key, tuple[datetime, Progress]]


def has_figures(progress: Progress) -> bool:
    """Whether a heartbeat has any; it may only repeat that a step was made, or be private."""
    return progress.step > 0 and any(getattr(progress, name) is not None for name in FIGURES)


@dataclass(frozen=True, slots=True)
class StepRetention:
    """The steps of a run that are kept: each `every`-th, of the last `rounds` rounds."""

    every: int
    rounds: int

    @classmethod
    def of(cls, settings: RunSettings) -> Self:
        room = max(1, min(MAX_POINTS_A_MEMBER, MAX_POINTS // settings.clients))
        every = -(-settings.local_steps // min(room, MAX_REPORTED_STEPS))
        return cls(every, max(1, room // (settings.local_steps // every)))


def write(session: Session, points: Points) -> None:
    """Store points; those of no step of a run that still keeps it are dropped."""
    query = select(RunRow).where(RunRow.id.in_({run for run, *_ in points}))
    runs = {run.id: run for run in session.scalars(query) if run.readable}
    rows = [
        {"run_id": run, "member": member, "round": round_, "step": step, "at": at}
        | {name: getattr(progress, name) for name in FIGURES}
        for (run, member, round_, step), (at, progress) in sorted(
            points.items(), key=lambda point: point[0]
        )
        if run in runs and _keeps(runs[run], round_, step)
    ]
    insert = inserting(session, StepRow)
    names = ("run_id", "member", "round", "step")
    values = {name: insert.excluded[name] for name in ("at", *FIGURES)}
    execute_many(session, insert.on_conflict_do_update(index_elements=names, set_=values), rows)


def _keeps(run: RunRow, round_: int, step: int) -> bool:
    kept = StepRetention.of(run.settings)
    is_recent = max(0, run.round - kept.rounds) < round_ <= run.round
    return is_recent and step <= run.settings.local_steps and step % kept.every == 0


def forget_old(session: Session, run: RunRow, round_: int) -> None:
    """Delete the points for which there is no more room when this round begins."""
    oldest = round_ - StepRetention.of(run.settings).rounds
    if oldest > 0:
        session.execute(delete(StepRow).where(StepRow.run_id == run.id, StepRow.round <= oldest))


def page(session: Session, run: str, after: tuple[str, int, int]) -> list[StepPoint]:
    """At most PAGE points by member, round and step, after this one."""
    place = (StepRow.member, StepRow.round, StepRow.step)
    query = select(StepRow).where(StepRow.run_id == run, tuple_(*place) > tuple_(*after))
    rows = session.scalars(query.order_by(*place).limit(PAGE))
    names = ("member", "round", "step", "at", *FIGURES)
    return [StepPoint(**{name: getattr(row, name) for name in names}) for row in rows]


def curves(
    session: Session, run: str, members: Sequence[str], first: int, every: int
) -> list[Row[Any]]:
    """Member, round, step and figures of each `every`-th step from round `first` on, in order."""
    figures = (getattr(StepRow, name) for name in FIGURES)
    query = (
        select(StepRow.member, StepRow.round, StepRow.step, *figures)
        .where(StepRow.run_id == run, StepRow.member.in_(members))
        .where(StepRow.round >= first, StepRow.step % every == 0)
    )
    return list(session.execute(query.order_by(StepRow.round, StepRow.step)).all())
