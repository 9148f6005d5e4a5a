"""A public step on the coordinator: prompts out, responses in, the exchange back."""

from collections.abc import Callable, Mapping

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import IdempotencyMismatch, NotFound, RoundClosed
from pubswap_protocol.messages import Receipt, ReceiptStatus, SwapSummary
from pubswap_protocol.responses import ResponseRules
from pubswap_protocol.schedule import public_steps_per_round
from pubswap_server import asking, members, runs
from pubswap_server.answers import Closed
from pubswap_server.auth import Member
from pubswap_server.closing import closes
from pubswap_server.events import record
from pubswap_server.state import ROUND_UNDER_WAY, exchange_began, exchange_ended
from pubswap_server.swap import Exchange, replaced
from pubswap_server.tables import RunRow, SubmissionRow, SwapRow, now

Verdicts = list[list[bool]]


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
    correct: Verdicts,
    donatable: Verdicts | None = None,
) -> Receipt:
    """Store verified responses; late if the exchange or its round is closed."""
    before = earlier(session, run, member, round_, swap, digest)
    if before is not None:
        return before
    row = session.get(SwapRow, (run.id, round_, swap))
    under_way = round_ == run.round and run.state in ROUND_UNDER_WAY
    if row is None and under_way:
        row = SwapRow(run_id=run.id, round=round_, swap=swap)
        session.add(row)
        runs.move(session, run, exchange_began, swap=swap)
    late = row is None or row.closed or not under_way
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
    )
    session.add(submission)
    record(session, run.id, "responses", member=member.name, round=round_, swap=swap, late=late)
    return _receipt(submission)


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
        row.closed = row.closed or closes(
            expected=members.active_clients(session, run.id),
            arrived=set(submissions),
            quorum=rules.quorum,
            first_at=row.first_at,
            deadline_seconds=rules.deadline_seconds,
            now=now(),
        )
        if row.closed and row.summary is None:
            exchange = _exchange(session, run, row, submissions)
            verdicts = [submission.correct for submission in submissions.values()]
            asking.learn(session, run, row.round, row.swap, verdicts)
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
