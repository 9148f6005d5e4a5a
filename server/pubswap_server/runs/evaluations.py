"""Evaluations of rounds, and the responses that an operator reads to see what a policy does."""

from sqlalchemy import Text, cast, select, update
from sqlalchemy.orm import Session

from pubswap_protocol.command_line.amounts import share_text
from pubswap_protocol.errors import IdempotencyMismatch, Invalid, NotFound
from pubswap_protocol.messages import Evaluation, FullEvaluation, SetKind
from pubswap_server.database.tables import RoundRow, RunRow
from pubswap_server.runs import runs
from pubswap_server.runs.events import record

# Responses are up to a MiB a round, and people compare the last rounds with the beginning.
ROUNDS_KEPT = 20


def submit(session: Session, run: RunRow, round_: int, body: FullEvaluation) -> bool:
    """Store a round's first evaluation; returns whether it is new.

    Raises NotFound, IdempotencyMismatch, or Invalid for more topics than problems.
    """
    row = session.get(RoundRow, (run.id, round_))
    if row is None or row.adapter is None:
        raise NotFound(f"Round {round_} has no adapter to evaluate.")
    if row.evaluation is not None:
        if row.evaluation["pass_at_1"] != body.pass_at_1:
            raise IdempotencyMismatch(f"Round {round_} was evaluated with another result.")
        return False
    if len(body.by_topic) > runs.sets_of(session, run)[SetKind.TEST].problems:
        raise Invalid("by_topic has more topics than the test set has problems.")
    row.evaluation = body.model_dump(mode="json", exclude={"responses"}, exclude_none=True)
    row.responses = [each.model_dump(mode="json") for each in body.responses]
    record(session, run.id, "evaluated", round=round_, pass_at_1=body.pass_at_1)
    if body.warning is not None:
        record(session, run.id, "suspicious answers", round=round_, warning=body.warning)
    old = RoundRow.round.between(1, round_ - ROUNDS_KEPT), RoundRow.responses.is_not(None)
    session.execute(update(RoundRow).where(RoundRow.run_id == run.id, *old).values(responses=None))
    return True


def in_words(evaluation: Evaluation) -> str:
    """pass@1 with its interval and n, and the mean scores beside it if there are any."""
    _, comma, others = evaluation.figures.partition(", ")
    return f"{share_text(evaluation.pass_at_1, evaluation.problems)}{comma}{others}"


def readable(session: Session, run: str) -> set[int]:
    """The rounds of which `read` returns responses."""
    text = cast(RoundRow.responses, Text)
    query = select(RoundRow.round).where(RoundRow.run_id == run, text.is_not(None), text != "[]")
    return set(session.scalars(query))


def read(session: Session, run: RunRow, round_: int) -> FullEvaluation:
    """A round's evaluation with its responses; raises NotFound if there are none (any more)."""
    row = session.get(RoundRow, (run.id, round_))
    if row is None or row.evaluation is None:
        raise NotFound(f"Round {round_} of {run.name} was not evaluated (yet).")
    if not row.responses:
        raise NotFound(
            f"There are no responses of round {round_}. Those of round 0 and of the last "
            f"{ROUNDS_KEPT} evaluated rounds are kept, and earlier evaluators sent none."
        )
    return FullEvaluation(**row.evaluation, responses=row.responses)
