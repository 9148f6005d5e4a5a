"""A snapshot of a run, read once for all its members, and the task it implies for each."""

from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from pubswap_protocol.command_line.amounts import first_few
from pubswap_protocol.messages import Role, RunState, Task, TaskKind
from pubswap_server.database.tables import (
    MemberRow,
    PublicStepRow,
    RoundRow,
    RunRow,
    SubmissionRow,
    UpdateRow,
)
from pubswap_server.exchange import exchanges
from pubswap_server.runs import members, rounds, runs
from pubswap_server.runs.auth import MemberPrincipal, require_going, require_good
from pubswap_server.runs.events import last_at
from pubswap_server.runs.quorum import Arrivals
from pubswap_server.runs.state import ENDED, ROUND_UNDER_WAY

MAX_NAMES = 8


@dataclass(frozen=True, slots=True)
class PendingMembers:
    """The members that have not arrived, in order, and how long they are waited for."""

    members: tuple[str, ...] = ()
    until: datetime | None = None

    @property
    def who(self) -> str:
        return first_few(self.members, MAX_NAMES)

    def words(self, what: str) -> str:
        """For example: a, b to finish round 3, until 2026-11-23 14:03:20 UTC at most.

        If nobody is awaited, it is the coordinator's turn, or the quorum is out of reach.
        """
        others = "the coordinator" if self.until else "more organisations"
        return f"{self.who or others} to {what}{self.deadline}"

    @property
    def deadline(self) -> str:
        """The end of a sentence about the members awaited: `, until … UTC at most`, or nothing."""
        return f", until {self.until:%F %T} UTC at most" if self.until and self.members else ""


NOBODY = PendingMembers()


@dataclass(frozen=True, slots=True)
class ExchangeState:
    """An exchange of the round under way and, while it is open, who has and has not answered."""

    closed: bool
    members: frozenset[str]
    awaited: PendingMembers = NOBODY


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """A run as the long polls of all its members read it: from it comes each one's task.

    The round under way begins from `adapter`. `handed_in` are the members whose updates are in,
    `awaited` the others, and `exchanges` its public steps by number. `backlog` is the first round
    with an adapter that was not evaluated, and that adapter. `joining` are the
    members that are in the next round, but not in this one. `refused` are the members that are
    revoked or suspended, as (active, suspended).
    """

    state: RunState
    paused_since: datetime | None
    round: int
    rollbacks: int
    adapter: str | None
    handed_in: frozenset[str]
    awaited: PendingMembers
    exchanges: Mapping[int, ExchangeState]
    backlog: tuple[int, str] | None
    joining: frozenset[str]
    refused: Mapping[str, tuple[bool, bool]]


def read_snapshot(session: Session, run: str) -> RunSnapshot:
    """Read a run; raises UnknownRun if it was deleted."""
    row = runs.by_id(session, run)
    previous = session.get(RoundRow, (run, row.round - 1))
    updates = session.execute(
        select(UpdateRow.member, UpdateRow.late, UpdateRow.received_at).where(
            UpdateRow.run_id == run, UpdateRow.round == row.round
        )
    ).all()
    participants = (
        members.active_clients(session, run) if row.state in ROUND_UNDER_WAY else set[str]()
    )
    handed_in = frozenset(member for member, *_ in updates)
    in_time, missing = [at for _, late, at in updates if not late], participants - handed_in
    # As if all were heard from, so that members are told of no deadline that may not hold.
    arrivals = rounds.arrivals_of(row, len(in_time), len(missing), min(in_time, default=None))
    backlog = session.execute(
        select(RoundRow.round, RoundRow.adapter)
        .where(RoundRow.run_id == run, RoundRow.adapter.is_not(None))
        .where(RoundRow.evaluation.is_(None))
        .order_by(RoundRow.round)
        .limit(1)
    ).first()
    refused = session.execute(
        select(MemberRow.name, MemberRow.active, MemberRow.suspended)
        .where(MemberRow.run_id == run)
        .where(or_(MemberRow.active.is_(False), MemberRow.suspended))
    )
    return RunSnapshot(
        state=RunState(row.state),
        paused_since=last_at(session, run, ["paused"]) if row.paused else None,
        round=row.round,
        rollbacks=row.rollbacks,
        adapter=previous.adapter if previous is not None else None,
        handed_in=handed_in,
        awaited=_awaited(missing, arrivals),
        exchanges=_exchanges(session, row, participants, handed_in),
        backlog=(backlog[0], str(backlog[1])) if backlog else None,
        joining=members.joining(session, run),
        refused={name: (active, suspended) for name, active, suspended in refused},
    )


def _awaited(missing: Set[str], arrivals: Arrivals) -> PendingMembers:
    return PendingMembers(tuple(sorted(missing)), arrivals.closes_at)


def _exchanges(
    session: Session, run: RunRow, participants: set[str], handed_in: Set[str]
) -> dict[int, ExchangeState]:
    rows = session.execute(
        select(PublicStepRow.public_step, PublicStepRow.closed, PublicStepRow.first_at).where(
            PublicStepRow.run_id == run.id, PublicStepRow.round == run.round
        )
    ).all()
    answered: dict[int, set[str]] = defaultdict(set)
    furthest: dict[str, int] = {}  # the last step that each has answered, also late or refused
    still_open = [public_step for public_step, closed, _ in rows if not closed]
    if still_open:
        answers = select(SubmissionRow.public_step, SubmissionRow.member, SubmissionRow.late).where(
            SubmissionRow.run_id == run.id,
            SubmissionRow.round == run.round,
            SubmissionRow.public_step >= min(still_open),
        )
        for public_step, member, late in session.execute(answers):
            furthest[member] = max(public_step, furthest.get(member, 0))
            if not late:
                answered[public_step].add(member)
    states = {
        public_step: ExchangeState(closed, frozenset(answered[public_step]))
        for public_step, closed, _ in rows
    }
    for public_step, closed, first_at in rows:
        if not closed:
            # As `exchanges.arrived`: one that has answered a later step is not awaited.
            arrived = handed_in | {name for name, last in furthest.items() if last >= public_step}
            missing = participants - arrived
            arrivals = exchanges.arrivals_of(run, len(arrived), len(missing), first_at)
            states[public_step] = replace(states[public_step], awaited=_awaited(missing, arrivals))
    return states


def task_for(snapshot: RunSnapshot, member: MemberPrincipal) -> Task:
    """The member's current task; raises Unauthenticated or Suspended."""
    require_good(*snapshot.refused.get(member.name, (True, False)))
    under_way, done = snapshot.state in ROUND_UNDER_WAY, snapshot.handed_in | snapshot.joining
    if member.role is Role.EVALUATOR:
        if snapshot.backlog is not None and snapshot.state is not RunState.CANCELLED:
            return _work(snapshot, TaskKind.EVALUATE, *snapshot.backlog)
    elif under_way and snapshot.paused_since is None and member.name not in done:
        return _work(snapshot, TaskKind.TRAIN, snapshot.round, snapshot.adapter)
    if snapshot.state in ENDED:
        return Task(kind=TaskKind.FINISHED, state=snapshot.state, round=snapshot.round)
    reason = waits_for(snapshot)
    if member.name in snapshot.joining and under_way:
        reason = f"round {snapshot.round + 1}, because you came mid-round: {reason}"
    return Task(
        kind=TaskKind.WAIT,
        state=snapshot.state,
        round=snapshot.round,
        waits_for=reason,
        paused=snapshot.paused_since is not None,
    )


def waits_for(snapshot: RunSnapshot, public_step: int | None = None) -> str:
    """The reason why a member has to wait, in a few words; in that public step, if given."""
    if snapshot.paused_since is not None:
        return f"the operator to resume the run, paused since {snapshot.paused_since:%F %T} UTC"
    if snapshot.state in (RunState.CREATED, RunState.OPEN):
        return "the operator to start the run"
    if snapshot.state is RunState.AGGREGATING:
        return f"the coordinator to aggregate round {snapshot.round}"
    if public_step is not None and public_step in snapshot.exchanges:
        return snapshot.exchanges[public_step].awaited.words(f"answer public step {public_step}")
    return snapshot.awaited.words(f"finish round {snapshot.round}")


def _work(snapshot: RunSnapshot, kind: TaskKind, round_: int, adapter: str | None) -> Task:
    """A task to train from an adapter or evaluate it."""
    return Task(
        kind=kind,
        state=snapshot.state,
        round=round_,
        adapter=adapter,
        rollbacks=snapshot.rollbacks,
    )


def settled(snapshot: RunSnapshot, member: MemberPrincipal, round_: int, public_step: int) -> bool:
    """Whether the member need not wait: the exchange is closed, or the member is not in it.

    Raises Unauthenticated, Suspended or RunCancelled.
    """
    require_good(*snapshot.refused.get(member.name, (True, False)))
    require_going(snapshot.state is RunState.CANCELLED)
    exchange = snapshot.exchanges.get(public_step)
    under_way = round_ == snapshot.round and snapshot.state in ROUND_UNDER_WAY
    if exchange is None or not under_way:
        return True
    return exchange.closed or member.name not in exchange.members
