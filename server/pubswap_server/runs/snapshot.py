"""A snapshot of a run, read once for all its members, and the task it implies for each."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import UnknownRun
from pubswap_protocol.messages import Role, RunState, Task, TaskKind
from pubswap_server.database.tables import (
    MemberRow,
    RoundRow,
    RunRow,
    SubmissionRow,
    SwapRow,
    UpdateRow,
)
from pubswap_server.runs.auth import MemberPrincipal, require_going, require_good
from pubswap_server.runs.events import last_at
from pubswap_server.runs.state import ENDED, ROUND_UNDER_WAY


@dataclass(frozen=True, slots=True)
class ExchangeState:
    """An exchange of the round under way; while it is open, the members that have answered."""

    closed: bool
    members: frozenset[str]


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """A run at one moment.

    `adapter` is what the round under way begins from, `handed_in` are the members whose updates
    of it are there, `exchanges` are its public steps by number, and `backlog` is the first round
    with an adapter that was not evaluated, and that adapter. `residuals` are those of all rounds
    that have one, in their order; none but under FedEx-LoRA. `refused` are the members that are not
    good now, and whether they are active and suspended.
    """

    state: RunState
    paused_since: datetime | None
    round: int
    adapter: str | None
    handed_in: frozenset[str]
    exchanges: Mapping[int, ExchangeState]
    backlog: tuple[int, str] | None
    residuals: tuple[tuple[int, str], ...]
    refused: Mapping[str, tuple[bool, bool]]


def read_snapshot(session: Session, run: str) -> RunSnapshot:
    """Raises UnknownRun for a run that was deleted."""
    row = session.get(RunRow, run)
    if row is None:
        raise UnknownRun(f"The run {run} was deleted.")
    before = session.get(RoundRow, (run, row.round - 1))
    updates = select(UpdateRow.member).where(UpdateRow.run_id == run, UpdateRow.round == row.round)
    backlog = session.execute(
        select(RoundRow.round, RoundRow.adapter)
        .where(RoundRow.run_id == run, RoundRow.adapter.is_not(None))
        .where(RoundRow.evaluation.is_(None))
        .order_by(RoundRow.round)
        .limit(1)
    ).first()
    return RunSnapshot(
        state=RunState(row.state),
        paused_since=last_at(session, run, ["paused"]) if row.paused else None,
        round=row.round,
        adapter=before.adapter if before is not None else None,
        handed_in=frozenset(session.scalars(updates)),
        exchanges=_exchanges(session, row),
        backlog=(backlog[0], str(backlog[1])) if backlog else None,
        residuals=read_residuals(session, run),
        refused=_refused(session, run),
    )


def read_residuals(session: Session, run: str) -> tuple[tuple[int, str], ...]:
    """The rounds that have a residual, and its digest, in their order; see `RunSnapshot`."""
    rows = session.execute(
        select(RoundRow.round, RoundRow.residual)
        .where(RoundRow.run_id == run, RoundRow.residual.is_not(None))
        .order_by(RoundRow.round)
    )
    return tuple((round_, str(digest)) for round_, digest in rows)


def _refused(session: Session, run: str) -> dict[str, tuple[bool, bool]]:
    rows = session.execute(
        select(MemberRow.name, MemberRow.active, MemberRow.suspended)
        .where(MemberRow.run_id == run)
        .where(or_(MemberRow.active.is_(False), MemberRow.suspended))
    )
    return {name: (active, suspended) for name, active, suspended in rows}


def _exchanges(session: Session, run: RunRow) -> dict[int, ExchangeState]:
    rows = select(SwapRow.swap, SwapRow.closed).where(
        SwapRow.run_id == run.id, SwapRow.round == run.round
    )
    closed = {swap: closed for swap, closed in session.execute(rows)}  # noqa: C416 - as in history
    members = defaultdict(set)
    if not all(closed.values()):
        in_time = select(SubmissionRow.swap, SubmissionRow.member).where(
            SubmissionRow.run_id == run.id,
            SubmissionRow.round == run.round,
            SubmissionRow.swap.in_(swap for swap, ended in closed.items() if not ended),
            SubmissionRow.late.is_(False),
        )
        for swap, member in session.execute(in_time):
            members[swap].add(member)
    return {swap: ExchangeState(ended, frozenset(members[swap])) for swap, ended in closed.items()}


def task_for(snapshot: RunSnapshot, member: MemberPrincipal) -> Task:
    """The member's present task; raises Unauthenticated or Suspended."""
    require_good(*snapshot.refused.get(member.name, (True, False)))
    if member.role is Role.EVALUATOR:
        if snapshot.backlog is not None and snapshot.state is not RunState.CANCELLED:
            return _work(snapshot, TaskKind.EVALUATE, *snapshot.backlog)
    elif _trains(snapshot, member):
        return _work(snapshot, TaskKind.TRAIN, snapshot.round, snapshot.adapter)
    if snapshot.state in ENDED:
        return Task(kind=TaskKind.FINISHED, state=snapshot.state, round=snapshot.round)
    reason = waits_for(snapshot)
    return Task(kind=TaskKind.WAIT, state=snapshot.state, round=snapshot.round, waits_for=reason)


def _trains(snapshot: RunSnapshot, member: MemberPrincipal) -> bool:
    under_way = snapshot.state in ROUND_UNDER_WAY and snapshot.paused_since is None
    return under_way and member.name not in snapshot.handed_in


def waits_for(snapshot: RunSnapshot) -> str:
    """The reason why a member has no work now, in a few words."""
    if snapshot.paused_since is not None:
        return f"the operator to resume the run, paused since {snapshot.paused_since:%F %T} UTC"
    if snapshot.state in (RunState.CREATED, RunState.OPEN):
        return "the operator to start the run"
    if snapshot.state is RunState.AGGREGATING:
        return f"the coordinator to aggregate round {snapshot.round}"
    return f"the other organisations to finish round {snapshot.round}"


def _work(snapshot: RunSnapshot, kind: TaskKind, round_: int, adapter: str | None) -> Task:
    """Training from, or evaluating, an adapter, with the residuals that belong to it."""
    last = round_ - 1 if kind is TaskKind.TRAIN else round_
    residuals = [digest for of, digest in snapshot.residuals if of <= last]
    return Task(kind=kind, state=snapshot.state, round=round_, adapter=adapter, residuals=residuals)


def settled(snapshot: RunSnapshot, member: MemberPrincipal, round_: int, swap: int) -> bool:
    """Whether the member has nothing to wait for in this exchange: it is closed, or not in it.

    Raises Unauthenticated, Suspended or RunCancelled.
    """
    require_good(*snapshot.refused.get(member.name, (True, False)))
    require_going(snapshot.state is RunState.CANCELLED)
    exchange = snapshot.exchanges.get(swap)
    under_way = round_ == snapshot.round and snapshot.state in ROUND_UNDER_WAY
    if exchange is None or not under_way:
        return True
    return exchange.closed or member.name not in exchange.members
