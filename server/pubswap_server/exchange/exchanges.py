"""A public step on the coordinator: prompts out, responses in, the exchange back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, CompoundSelect, func, null, select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import IdempotencyMismatch, NotFound, RoundClosed
from pubswap_protocol.messages import PublicStepSummary, Receipt, ReceiptStatus, RunState
from pubswap_protocol.methods.method import PubSwap
from pubswap_protocol.methods.strategies import Pool, Strategy
from pubswap_protocol.schedule import public_batch, public_steps_per_round
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.responses import ResponseRules
from pubswap_server.clock import now
from pubswap_server.database.engine import changed
from pubswap_server.database.tables import PublicStepRow, RunRow, SetRow, SubmissionRow, UpdateRow
from pubswap_server.exchange import doubts
from pubswap_server.exchange.cache import ClosedExchange
from pubswap_server.runs import members, runs
from pubswap_server.runs.auth import MemberPrincipal, require_going
from pubswap_server.runs.events import record
from pubswap_server.runs.quorum import Arrivals
from pubswap_server.runs.state import ROUND_UNDER_WAY, exchange_began, exchange_ended

Verdicts = list[list[bool]]
Step = tuple[int, int]  # round, public_step
REFUSED = "refused"  # in place of a digest
Key = tuple[str, int, int, str]  # a submission's run, round, public step and member


@dataclass(frozen=True)
class Unverified:
    """The inputs for verifying a submission: its rules, its run's settings, and digests."""

    rules: ResponseRules
    settings: RunSettings
    stored: str
    public: str
    tokenizer: str


def check_step(run: RunRow, round_: int, public_step: int, rollbacks: int | None = None) -> None:
    """Check that the run has this public step and that its round has begun.

    Raises NotFound for a step that the run does not have, RoundClosed for a round that has not
    begun, or that the member began before a rollback.
    """
    steps = public_steps_per_round(run.settings)
    if round_ < 1 or not 1 <= public_step <= steps:
        raise NotFound(f"Round {round_} has no public step {public_step}; each round has {steps}.")
    if round_ > run.round:
        raise RoundClosed(f"Round {round_} is not under way; the run is in round {run.round}.")
    runs.require_since(run, rollbacks)


def rules_of(
    session: Session, run: RunRow, round_: int, public_step: int, rollbacks: int | None = None
) -> ResponseRules:
    """The form of a public step's responses; raises NotFound or RoundClosed, see `check_step`."""
    check_step(run, round_, public_step, rollbacks)
    public = session.get_one(SetRow, (run.id, "public")).problems
    return ResponseRules.of(
        run.model, run.settings, public_batch(run.settings, public, round_, public_step)
    )


def submitted(
    session: Session, run: RunRow, member: MemberPrincipal, round_: int, public_step: int
) -> SubmissionRow | None:
    """The member's responses in a public step; None if it sent none, or only what was refused."""
    row = session.get(SubmissionRow, (run.id, round_, public_step, member.name))
    return None if row is None or row.digest == REFUSED else row


def same_receipt(row: SubmissionRow, digest: str) -> Receipt:
    """The receipt for a repeated submission; raises IdempotencyMismatch for a different one."""
    if row.digest != digest:
        raise IdempotencyMismatch(
            f"You have sent other responses to public step {row.public_step} of round {row.round}."
        )
    return receipt_of(row)


def submit(
    session: Session,
    run: RunRow,
    member: MemberPrincipal,
    round_: int,
    public_step: int,
    digest: str,
    correct: Verdicts | None,
    donatable: Verdicts | None = None,
    *,
    arrived: datetime,
    rollbacks: int | None = None,
) -> Receipt:
    """Store responses, with their verdicts if known; late if the exchange or round is closed.

    They are also late if, when they arrived, only the verification of others kept the exchange
    open. Raises RunCancelled, RunPaused, and RoundClosed if the run was rolled back since the task.
    """
    require_going(run.state == RunState.CANCELLED)
    runs.require_since(run, rollbacks)
    existing = submitted(session, run, member, round_, public_step)
    if existing is not None:
        return same_receipt(existing, digest)
    runs.require_resumed(run)
    row = session.get(PublicStepRow, (run.id, round_, public_step))
    under_way = round_ == run.round and run.state in ROUND_UNDER_WAY
    if row is None and under_way:
        row = PublicStepRow(run_id=run.id, round=round_, public_step=public_step, first_at=arrived)
        session.add(row)
        runs.move(session, run, exchange_began, public_step=public_step)
    if doubts.excluded(session, run.id, member.name):
        rules = rules_of(session, run, round_, public_step)
        donatable = [[False] * rules.responses_per_prompt for _ in rules.prompts]
    late = row is None or row.closed or not under_way or _only_held(session, run, row, arrived)
    refused = session.get(SubmissionRow, (run.id, round_, public_step, member.name))
    if refused is not None:
        session.delete(refused)
        session.flush()
    submission = SubmissionRow(
        run_id=run.id,
        round=round_,
        public_step=public_step,
        member=member.name,
        digest=digest,
        stored=digest,
        correct=correct,
        donatable=donatable,
        late=late,
        received_at=arrived,
    )
    session.add(submission)
    record(session, run.id, "responses", **_place(submission), late=late)
    _tell_withheld(session, submission)
    return receipt_of(submission)


def refuse(
    session: Session,
    run: RunRow,
    member: MemberPrincipal,
    round_: int,
    public_step: int,
    reason: str,
    *,
    arrived: datetime,
    rollbacks: int | None = None,
) -> None:
    """Note that a member's responses to a public step were refused, so that nobody waits for it.

    Only once, because a member must not fill the log. Raises what `submit` raises.
    """
    require_going(run.state == RunState.CANCELLED)
    runs.require_since(run, rollbacks)
    known = session.get(SubmissionRow, (run.id, round_, public_step, member.name)) is not None
    if round_ != run.round or run.state not in ROUND_UNDER_WAY or known:
        return
    row = SubmissionRow(
        run_id=run.id,
        round=round_,
        public_step=public_step,
        member=member.name,
        digest=REFUSED,
        late=True,
        received_at=arrived,
    )
    session.add(row)
    record(session, run.id, "responses refused", **_place(row), reason=reason)


def _place(row: SubmissionRow) -> dict[str, Any]:
    """The member and the public step of a submission, for the log."""
    return {"member": row.member, "round": row.round, "public_step": row.public_step}


def _tell_withheld(session: Session, row: SubmissionRow) -> None:
    """Say so if most of a member's correct responses are not donated, unless it is excluded."""
    if row.correct is None or row.donatable is None:
        return
    correct, donatable = np.array(row.correct), np.array(row.donatable)
    right, withheld = int(correct.sum()), int((correct & ~donatable).sum())
    if 2 * withheld > right and not doubts.excluded(session, row.run_id, row.member):
        counts = {"right": right, "withheld": withheld}
        record(session, row.run_id, "responses withheld", **_place(row), **counts)


def _only_held(session: Session, run: RunRow, row: PublicStepRow, arrived: datetime) -> bool:
    """Whether, at `arrived`, only the verification of responses keeps an exchange open."""
    rules = rules_of_exchange(run)
    if (arrived - row.first_at).total_seconds() < rules.deadline_seconds:
        return False
    (count, done), present = _counts(session, row), arrivals(session, run, row)
    return present.arrived >= present.quorum and done < count


def unverified(session: Session, until: datetime, run: str | None = None) -> list[Key]:
    """The submissions without verdicts in rounds under way, of all runs or of one.

    Only those that arrived by `until`, oldest first.
    """
    row = SubmissionRow
    query = (
        select(row.run_id, row.round, row.public_step, row.member)
        .join(RunRow, RunRow.id == SubmissionRow.run_id)
        .where(RunRow.state.in_(ROUND_UNDER_WAY), RunRow.round == SubmissionRow.round)
        .where(SubmissionRow.correct.is_(null()), SubmissionRow.late.is_(False))
        .where(SubmissionRow.received_at <= until)
        .order_by(SubmissionRow.received_at)
    )
    if run is not None:
        query = query.where(RunRow.id == run)
    return [(*key,) for key in session.execute(query)]


def unverified_submission(session: Session, key: Key) -> Unverified | None:
    """A submission to verify; None if it has verdicts, or if nobody needs them any more."""
    row = session.get(SubmissionRow, key)
    if row is None or row.stored is None or row.correct is not None or row.late:
        return None
    run = session.get_one(RunRow, key[0])
    if run.round != key[1] or run.state not in ROUND_UNDER_WAY:
        return None
    return Unverified(
        rules=rules_of(session, run, row.round, row.public_step),
        settings=run.settings,
        stored=row.stored,
        public=session.get_one(SetRow, (run.id, "public")).digest,
        tokenizer=run.tokenizer or "",
    )


def verified(session: Session, key: Key, stored: str, verdicts: Verdicts, given_up: int) -> bool:
    """Keep the verdicts on `stored` responses, of which `given_up` are wrong for lack of time.

    Returns whether nothing is left to do; False if other responses have taken their place.
    """
    row = session.get(SubmissionRow, key)
    if row is None or row.correct is not None:
        return True
    if row.stored != stored:
        return False
    row.correct = verdicts
    changed(session, row.run_id, awaited=False)
    _tell_withheld(session, row)
    if given_up:
        record(session, row.run_id, "verification cut off", **_place(row), responses=given_up)
    return True


def receipt_of(row: SubmissionRow | UpdateRow) -> Receipt:
    status = ReceiptStatus.LATE if row.late else ReceiptStatus.ACCEPTED
    return Receipt(status=status, digest=row.digest)


def _submissions(
    session: Session, run: str, round_: int, public_step: int
) -> dict[str, SubmissionRow]:
    rows = session.scalars(select(SubmissionRow).where(*_in_time(run, round_, public_step)))
    return {row.member: row for row in sorted(rows, key=lambda row: row.member)}


def open_rows(session: Session, run: RunRow) -> list[PublicStepRow]:
    """The open exchanges of the round under way, in order."""
    of_round = PublicStepRow.run_id == run.id, PublicStepRow.round == run.round
    query = select(PublicStepRow).where(*of_round, PublicStepRow.closed.is_(False))
    return list(session.scalars(query.order_by(PublicStepRow.public_step)))


def closed_steps(session: Session, run: RunRow, round_: int) -> list[int]:
    of_round = PublicStepRow.run_id == run.id, PublicStepRow.round == round_, PublicStepRow.closed
    query = select(PublicStepRow.public_step).where(*of_round)
    return list(session.scalars(query.order_by(PublicStepRow.public_step)))


def _in_time(run: str, round_: int, public_step: int) -> tuple[ColumnElement[bool], ...]:
    return (
        SubmissionRow.run_id == run,
        SubmissionRow.round == round_,
        SubmissionRow.public_step == public_step,
        SubmissionRow.late.is_(False),
    )


def arrivals(session: Session, run: RunRow, row: PublicStepRow) -> Arrivals:
    """The numbers of members that have and have not answered in an exchange.

    A member that will not answer any more counts as if it had. It has handed in its update, or
    answered a later step because a restore lost this answer, or its answer was damaged and is not
    asked for again.
    """
    gone = arrived(row)
    count = session.scalars(select(func.count()).select_from(gone.subquery())).one()
    deadline = rules_of_exchange(run).deadline_seconds
    outstanding, unheard = members.expected(session, row.run_id, gone, deadline)
    return arrivals_of(run, count, outstanding, row.first_at, unheard)


def rules_of_exchange(run: RunRow) -> PubSwap:
    """The rules of a run's public steps; only runs that have some get here."""
    assert run.settings.exchange is not None
    return run.settings.exchange


def arrived(row: PublicStepRow) -> CompoundSelect[str]:
    """The members that are not waited for in an exchange; see `arrivals`."""
    answered = select(SubmissionRow.member).where(
        SubmissionRow.run_id == row.run_id,
        SubmissionRow.round == row.round,
        SubmissionRow.public_step >= row.public_step,
    )
    of_round = UpdateRow.run_id == row.run_id, UpdateRow.round == row.round
    return answered.union(select(UpdateRow.member).where(*of_round))


def arrivals_of(
    run: RunRow, arrived: int, outstanding: int, first_at: datetime, unheard: int = 0
) -> Arrivals:
    # The minimum is for rounds. An exchange of fewer teaches nobody, but holds nobody up.
    minimum = run.settings.members.minimum and 1
    return Arrivals.of(rules_of_exchange(run), minimum, arrived, outstanding, first_at, unheard)


def _counts(session: Session, row: PublicStepRow) -> tuple[int, int]:
    """The number of answers in time, and how many of them have verdicts."""
    query = select(func.count(), func.count(SubmissionRow.correct))
    count, done = session.execute(
        query.where(*_in_time(row.run_id, row.round, row.public_step))
    ).one()
    return count, done


def summary_of(strategy: Strategy, pool: Pool) -> PublicStepSummary:
    """The result of an exchange that is about to close, computed outside of any transaction."""
    correct, counts = pool.correct, strategy.replaced(pool)
    size = next(iter(correct.values())).size
    return PublicStepSummary(
        public_step=pool.public_step,
        clients=len(correct),
        replaced=sum(counts.values()),
        replaced_share={name: count / size for name, count in counts.items()},
        correct_share={name: float(verdicts.mean()) for name, verdicts in correct.items()},
    )


def due(session: Session, run: RunRow) -> list[PublicStepRow]:
    """The exchanges that all have answered, or a quorum if the deadline has passed.

    None in a pause, in which members hold their responses. Responses that came in time count,
    however long the verifier takes. If all answers of an exchange were withdrawn and their members
    have handed in updates, it has no outcome and ends with its round.
    """
    if run.state not in ROUND_UNDER_WAY or run.paused:
        return []
    due_rows = []
    for row in open_rows(session, run):
        count, done = _counts(session, row)
        if not count == done > 0:
            continue
        if arrivals(session, run, row).closes(now()):
            due_rows.append(row)
    return due_rows


def close_due(
    session: Session,
    run: RunRow,
    summaries: Mapping[Step, PublicStepSummary],
    timed: Callable[[float], None],
) -> list[Step]:
    """Close the exchanges that are due, with their summaries; returns those without one yet.

    A summary is out of date if others have answered since. `timed` is called with each exchange's
    seconds since its first responses.
    """
    pending = []
    for row in due(session, run):
        names = select(SubmissionRow.member).where(*_in_time(run.id, row.round, row.public_step))
        summary = summaries.get((row.round, row.public_step))
        if summary is None or summary.correct_share.keys() != set(session.scalars(names)):
            pending.append((row.round, row.public_step))
            continue
        row.closed, row.summary = True, summary.model_dump(mode="json")
        record(session, run.id, "exchange closed", **row.summary, round=row.round)
        timed((now() - row.first_at).total_seconds())
    if run.state == RunState.EXCHANGING and not open_rows(session, run):
        runs.move(session, run, exchange_ended)
    return pending


def answered(session: Session, run: str, step: Step) -> tuple[Strategy, Pool]:
    """The strategy of a run, and the verdicts that an exchange has so far."""
    row, submissions = runs.by_id(session, run), _submissions(session, run, *step)
    done = {name: each for name, each in submissions.items() if each.correct is not None}
    return rules_of_exchange(row).strategy, _pool(session, row, step, done)


def _pool(session: Session, run: RunRow, step: Step, done: Mapping[str, SubmissionRow]) -> Pool:
    round_, public_step = step
    return Pool(
        seed=run.settings.seed,
        round=round_,
        public_step=public_step,
        prompts=rules_of(session, run, round_, public_step).prompts,
        correct={name: np.array(s.correct, dtype=bool) for name, s in done.items()},
        donatable={name: np.array(s.donatable) for name, s in done.items() if s.donatable},
    )


def kept_steps(session: Session, run: str, first: int) -> set[Step]:
    """The public steps from round `first` on whose responses, if they are closed, can be read."""
    query = select(SubmissionRow.round, SubmissionRow.public_step).where(
        SubmissionRow.run_id == run, SubmissionRow.round >= first, SubmissionRow.late.is_(False)
    )
    steps = query.group_by(SubmissionRow.round, SubmissionRow.public_step)
    kept = steps.having(func.count(SubmissionRow.stored) == func.count())
    return {(round_, public_step) for round_, public_step in session.execute(kept)}


def closed(session: Session, run: RunRow, round_: int, public_step: int) -> ClosedExchange:
    """A closed exchange; raises NotFound or RoundClosed if it is open or never began."""
    rules = rules_of(session, run, round_, public_step)
    row = session.get(PublicStepRow, (run.id, round_, public_step))
    if row is None or not row.closed:
        raise RoundClosed(f"Public step {public_step} of round {round_} has no closed exchange.")
    submissions = _submissions(session, run.id, round_, public_step)
    digests = {name: row.stored for name, row in submissions.items() if row.stored is not None}
    if len(digests) < len(submissions):
        raise RoundClosed(f"The responses of round {round_} are no longer kept.")
    pool = _pool(session, run, (round_, public_step), submissions)
    strategy = rules_of_exchange(run).strategy
    return ClosedExchange(strategy, pool, rules, digests, run.sampling_secret)
