"""A public step on the coordinator: prompts out, responses in, the exchange back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from sqlalchemy import null, select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import IdempotencyMismatch, NotFound, RoundClosed
from pubswap_protocol.messages import Receipt, ReceiptStatus, RunState, SwapSummary
from pubswap_protocol.responses import ResponseRules
from pubswap_protocol.schedule import public_steps_per_round
from pubswap_server import asking, members, runs
from pubswap_server.answers import Closed
from pubswap_server.auth import Member, require_going
from pubswap_server.closing import closes
from pubswap_server.database import changed
from pubswap_server.events import record
from pubswap_server.state import ROUND_UNDER_WAY, exchange_began, exchange_ended
from pubswap_server.swap import Exchange, replaced
from pubswap_server.tables import RunRow, SetRow, SubmissionRow, SwapRow, now

Verdicts = list[list[bool]]
Key = tuple[str, int, int, str]  # a submission's run, round, public step and member


@dataclass(frozen=True)
class Unverified:
    """What the verdicts on a submission follow from: its rules, and what digests name."""

    rules: ResponseRules
    verifier: str
    stored: str
    public: str
    tokenizer: str


def check_there(run: RunRow, round_: int, swap: int) -> None:
    """Raises NotFound for a public step that the run does not have, or not yet."""
    steps = public_steps_per_round(runs.settings_of(run))
    if not (1 <= round_ <= run.round and 1 <= swap <= steps):
        raise NotFound(
            f"Round {round_} has no public step {swap} now; the run is in round {run.round} with "
            f"{steps} public steps a round."
        )


def rules_of(session: Session, run: RunRow, round_: int, swap: int) -> ResponseRules:
    """What a public step's responses must look like; raises NotFound if there is none such."""
    check_there(run, round_, swap)
    settings = runs.settings_of(run)
    return ResponseRules(
        prompts=asking.prompts_of(session, run, round_, swap),
        responses_per_prompt=settings.grpo.responses_per_prompt,
        max_response_tokens=settings.grpo.max_response_tokens,
        vocabulary=runs.model_of(run).vocabulary,
    )


def earlier(
    session: Session, run: RunRow, member: Member, round_: int, swap: int, digest: str
) -> Receipt | None:
    """The receipt of the same submission, if it was made before; raises IdempotencyMismatch."""
    row = session.get(SubmissionRow, (run.id, round_, swap, member.name))
    if row is None:
        return None
    if row.digest != digest:
        raise IdempotencyMismatch(
            f"Your responses for public step {swap} of round {round_} were others."
        )
    return _receipt(row)


def submit(
    session: Session,
    run: RunRow,
    member: Member,
    round_: int,
    swap: int,
    digest: str,
    correct: Verdicts | None,
    donatable: Verdicts | None = None,
    *,
    arrived: datetime,
) -> Receipt:
    """Store responses, `correct` if that is known; late if the exchange or its round is closed.

    Also late are those that arrived when only the verification of others kept it open. Raises
    RunCancelled.
    """
    require_going(run.state == RunState.CANCELLED)
    before = earlier(session, run, member, round_, swap, digest)
    if before is not None:
        return before
    row = session.get(SwapRow, (run.id, round_, swap))
    under_way = round_ == run.round and run.state in ROUND_UNDER_WAY
    if row is None and under_way:
        row = SwapRow(run_id=run.id, round=round_, swap=swap, first_at=arrived)
        session.add(row)
        runs.move(session, run, exchange_began, swap=swap)
    late = row is None or row.closed or not under_way or _only_held(session, run, row, arrived)
    submission = SubmissionRow(
        run_id=run.id,
        round=round_,
        swap=swap,
        member=member.name,
        digest=digest,
        stored=digest,
        correct=correct,
        donatable=donatable,
        late=late,
        received_at=arrived,
    )
    session.add(submission)
    record(session, run.id, "responses", member=member.name, round=round_, swap=swap, late=late)
    return _receipt(submission)


def _only_held(session: Session, run: RunRow, row: SwapRow, arrived: datetime) -> bool:
    """Whether an exchange would be closed already, but for responses that are being verified."""
    rules = runs.settings_of(run).swap
    if (arrived - row.first_at).total_seconds() < rules.deadline_seconds:
        return False
    verified = [
        submission.correct is not None
        for submission in _submissions(session, run.id, row.round, row.swap).values()
    ]
    return len(verified) >= rules.quorum and not all(verified)


def unverified(session: Session, before: datetime) -> list[Key]:
    """The submissions without verdicts that arrived before, of rounds under way, oldest first."""
    rows = session.execute(
        select(SubmissionRow.run_id, SubmissionRow.round, SubmissionRow.swap, SubmissionRow.member)
        .join(RunRow, RunRow.id == SubmissionRow.run_id)
        .where(RunRow.state.in_(ROUND_UNDER_WAY), RunRow.round == SubmissionRow.round)
        .where(SubmissionRow.correct.is_(null()), SubmissionRow.late.is_(False))
        .where(SubmissionRow.received_at <= before)
        .order_by(SubmissionRow.received_at)
    )
    return [(run, round_, swap, member) for run, round_, swap, member in rows]


def unverified_one(session: Session, key: Key) -> Unverified | None:
    """What is to be verified; None if there are verdicts, or nobody needs them any more."""
    row, run = session.get(SubmissionRow, key), session.get_one(RunRow, key[0])
    moot = run.round != key[1] or run.state not in ROUND_UNDER_WAY
    if row is None or row.stored is None or row.correct is not None or row.late or moot:
        return None
    return Unverified(
        rules=rules_of(session, run, row.round, row.swap),
        verifier=runs.settings_of(run).verifier,
        stored=row.stored,
        public=session.get_one(SetRow, (run.id, "public")).digest,
        tokenizer=run.tokenizer or "",
    )


def verified(session: Session, key: Key, verdicts: Verdicts, given_up: int) -> None:
    """Keep a submission's verdicts, of which `given_up` are wrong for want of time."""
    row = session.get(SubmissionRow, key)
    if row is None or row.correct is not None:
        return
    row.correct = verdicts
    changed(session, row.run_id)
    if given_up:
        details = {"member": row.member, "round": row.round, "swap": row.swap}
        record(session, row.run_id, "verification cut off", **details, responses=given_up)


def _receipt(row: SubmissionRow) -> Receipt:
    status = ReceiptStatus.LATE if row.late else ReceiptStatus.ACCEPTED
    return Receipt(status=status, digest=row.digest)


def _submissions(session: Session, run: str, round_: int, swap: int) -> dict[str, SubmissionRow]:
    rows = session.scalars(
        select(SubmissionRow).where(
            SubmissionRow.run_id == run,
            SubmissionRow.round == round_,
            SubmissionRow.swap == swap,
            SubmissionRow.late.is_(False),
        )
    )
    return {row.member: row for row in sorted(rows, key=lambda row: row.member)}


def close_if_due(session: Session, run: RunRow, timed: Callable[[float], None]) -> bool:
    """Close the exchanges that all, or a quorum after the deadline, have answered.

    `timed` hears how many seconds each took from its first responses on.
    Returns whether it closed one.
    """
    if run.state not in ROUND_UNDER_WAY:
        return False
    some = False
    rules = runs.settings_of(run).swap
    rows = session.scalars(
        select(SwapRow).where(SwapRow.run_id == run.id, SwapRow.round == run.round)
    ).all()
    for row in rows:
        submissions = _submissions(session, run.id, row.round, row.swap)
        # Who came in time is in it, however long the verifier takes.
        correct = [s.correct for s in submissions.values() if s.correct is not None]
        row.closed = row.closed or (
            len(correct) == len(submissions)
            and closes(
                expected=members.active_clients(session, run.id),
                arrived=set(submissions),
                quorum=rules.quorum,
                first_at=row.first_at,
                deadline_seconds=rules.deadline_seconds,
                now=now(),
            )
        )
        if row.closed and row.summary is None:
            exchange = _exchange(session, run, row, submissions)
            asking.learn(session, run, row.round, row.swap, correct)
            row.summary = _summary(exchange).model_dump(mode="json")
            record(session, run.id, "exchange closed", **row.summary, round=row.round)
            timed((now() - row.first_at).total_seconds())
            some = True
    if run.state == "exchanging" and all(row.closed for row in rows):
        runs.move(session, run, exchange_ended)
    return some


def _summary(exchange: Exchange) -> SwapSummary:
    correct = exchange.correct
    counts = {name: replaced(exchange.choices(name), name) for name in correct}
    size = next(iter(correct.values())).size
    return SwapSummary(
        swap=exchange.swap,
        clients=len(correct),
        replaced=sum(counts.values()),
        replaced_share={name: count / size for name, count in counts.items()},
        correct_share={name: float(verdicts.mean()) for name, verdicts in correct.items()},
    )


def _exchange(
    session: Session, run: RunRow, row: SwapRow, submissions: Mapping[str, SubmissionRow]
) -> Exchange:
    settings = runs.settings_of(run)
    return Exchange(
        strategy=settings.swap.strategy,
        seed=settings.seed,
        round=row.round,
        swap=row.swap,
        prompts=rules_of(session, run, row.round, row.swap).prompts,
        correct={name: np.array(s.correct, dtype=bool) for name, s in submissions.items()},
        donatable={name: np.array(s.donatable) for name, s in submissions.items() if s.donatable},
        max_donor_share=settings.swap.max_donor_share,
        candidates=settings.swap.candidates if settings.swap.donors == "likely" else None,
    )


def closed(session: Session, run: RunRow, round_: int, swap: int) -> Closed:
    """An exchange that is closed; raises NotFound or RoundClosed if it is not, or never began."""
    rules = rules_of(session, run, round_, swap)
    row = session.get(SwapRow, (run.id, round_, swap))
    if row is None or not row.closed:
        raise RoundClosed(
            f"Public step {swap} of round {round_} has no responses of yours in time; train on "
            "your own."
        )
    submissions = _submissions(session, run.id, round_, swap)
    digests = {name: row.stored for name, row in submissions.items() if row.stored is not None}
    if len(digests) < len(submissions):
        raise RoundClosed(f"The responses of round {round_} are not kept any more.")
    return Closed(_exchange(session, run, row, submissions), rules, digests)
