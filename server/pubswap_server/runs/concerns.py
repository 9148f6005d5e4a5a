"""What an operator should know of a run under way before anything else, in one sentence."""

from collections.abc import Iterable

from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session

from pubswap_protocol.command_line.amounts import first_few
from pubswap_server.database.tables import MemberRow, RunRow, StepRow, SubmissionRow
from pubswap_server.exchange import doubts
from pubswap_server.exchange.exchanges import REFUSED
from pubswap_server.runs import members
from pubswap_server.runs.state import ENDED

NAMES = 3
UNPAID_STEPS = 8  # a task that is merely hard has paid a response by then


def read_concerns(session: Session, run: RunRow) -> str:
    """Members that are suspended, away, doubted or not paid, and refused responses; or "".

    Below a quorum, and while paused, the run's activity says so.
    """
    if run.state in ENDED:
        return ""
    away = [f"{name} is away ({code})" for name, code in members.away_clients(session, run.id)]
    parts = [_all(members.suspended(session, run.id), "suspended"), *_few(away)]
    for more in (_doubted, _refused, _unpaid):
        parts += _few(more(session, run))
    sentence = "; ".join(part for part in parts if part)
    return f"{sentence}." if sentence else ""


def _all(names: list[str], what: str) -> str:
    verb = "is" if len(names) == 1 else "are"
    return f"{first_few(names, NAMES)} {verb} {what}" if names else ""


def _few(parts: Iterable[str]) -> list[str]:
    listed = list(parts)
    return [first_few(listed, NAMES)] if listed else []


def _doubted(session: Session, run: RunRow) -> Iterable[str]:
    for name, standing in sorted(doubts.standings(session, run.id).items()):
        if standing.doubting:
            end = " and no longer donates" if standing.excluded else ""
            yield f"{name} is doubted by {standing.doubting} of {standing.judging}{end}"


def _refused(session: Session, run: RunRow) -> Iterable[str]:
    """Of the round under way."""
    query = select(SubmissionRow.member, SubmissionRow.public_step).where(
        SubmissionRow.run_id == run.id,
        SubmissionRow.round == run.round,
        SubmissionRow.digest == REFUSED,
    )
    for name, public_step in session.execute(
        query.order_by(SubmissionRow.public_step, SubmissionRow.member)
    ):
        yield f"the responses of {name} to public step {public_step} were refused"


def _unpaid(session: Session, run: RunRow) -> Iterable[str]:
    """Clients that learn nothing, because each of their last steps has a reward of 0.

    Looks at no more rounds than hold so many steps, because a run keeps 400,000 points.
    """
    rounds = -(-UNPAID_STEPS // run.settings.local_steps)
    last = (StepRow.run_id == run.id, StepRow.round >= run.round - rounds)
    paid = exists().where(*last, StepRow.member == MemberRow.name, StepRow.reward > 0)
    never = session.scalars(select(MemberRow.name).where(MemberRow.run_id == run.id, ~paid)).all()
    steps = select(StepRow.member, func.count()).where(
        *last, StepRow.member.in_(never), StepRow.reward == 0
    )
    for name, count in session.execute(steps.group_by(StepRow.member).order_by(StepRow.member)):
        if count >= UNPAID_STEPS:
            yield f"no response of {name} has been paid in its last {count} steps"
