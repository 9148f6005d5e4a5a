"""Members' routes in a round: tasks, updates, evaluations."""

from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Response
from sqlalchemy.orm import Session

from pubswap_protocol import digests, paths
from pubswap_protocol.bounds import Word
from pubswap_protocol.errors import IdempotencyMismatch, Invalid, NotFound, RoundClosed
from pubswap_protocol.messages import Evaluation, Receipt, SetKind, SubmitUpdate, Task, TaskKind
from pubswap_server.database.tables import RoundRow, RunRow
from pubswap_server.exchange import exchanges
from pubswap_server.http.dependencies import (
    ClientRun,
    EvaluatorRun,
    MemberDep,
    Number,
    Rollbacks,
    RunAccess,
    ServicesDep,
    Wait,
)
from pubswap_server.http.plain_json import PlainJsonRoute
from pubswap_server.runs import rounds, runs
from pubswap_server.runs.auth import MemberPrincipal, require_accepted, require_own
from pubswap_server.runs.events import record
from pubswap_server.runs.snapshot import task_for

router = APIRouter(tags=["rounds"], route_class=PlainJsonRoute)


@router.get(paths.TASK, summary="Get the next task")
async def get_task(run: Word, member: MemberDep, services: ServicesDep, wait: Wait = 0) -> Task:
    """Answers at once if there is something to do, otherwise after `wait` seconds.

    409 `hello_needed` for a member whose last hello was refused, or that has sent none since the
    coordinator started with another version of the run's verifier.
    """
    require_own(run, member)
    require_accepted(member)

    async def current() -> Task:
        return task_for(await services.snapshots.get(run), member)

    seconds = min(wait, services.settings.max_wait_seconds)
    with services.metrics.waiting.track_inprogress():
        return await services.changes.until(
            run, current, lambda t: t.kind is not TaskKind.WAIT, seconds
        )


@router.post(paths.UPDATE, summary="Hand in a round's adapter")
async def submit_update(
    run: ClientRun,
    round: Number,
    body: SubmitUpdate,
    start: Annotated[
        str | None,
        Query(pattern=digests.PATTERN, description="The adapter that training started from."),
    ] = None,
    rollbacks: Rollbacks = None,
) -> Receipt:
    """Send the adapter as a blob first. If the round is closed: `late, unused`.

    409 `run_paused` during a pause: hand it in again once the run is resumed.

    With `start`, 409 `round_closed` if the round now starts from another adapter.
    """
    member = run.principal
    received = await _count_received(run, round) if body.metrics.donors else {}
    return await run.write(
        lambda session, row: rounds.submit(
            session, row, member, round, body, received, start, rollbacks
        )
    )


async def _count_received(run: RunAccess[MemberPrincipal], round_: int) -> Counter[str]:
    """Count the responses of each peer that a member got, or was offered, in a round.

    Exchanges whose responses are gone are skipped, as they are for an update after its round.
    """
    services, member, received = run.services, run.principal.name, Counter[str]()
    rollbacks, swaps = await run.read(
        lambda session, row: (row.rollbacks, exchanges.closed_steps(session, row, round_))
    )
    for swap in swaps:
        load = partial(run.read_for_all, partial(exchanges.closed, round_=round_, swap=swap))
        with suppress(RoundClosed, NotFound):
            key = run.name, rollbacks, round_, swap
            received += await services.answers.gifts(key, member, load)
    return received


@router.post(paths.EVALUATION, status_code=204, summary="Hand in an evaluation")
async def submit_evaluation(run: EvaluatorRun, round: Number, body: Evaluation) -> Response:
    """For the global adapter of a round; round 0 is the base model."""

    def work(session: Session, run_row: RunRow) -> None:
        row = session.get(RoundRow, (run_row.id, round))
        if row is None or row.adapter is None:
            raise NotFound(f"Round {round} has no adapter to evaluate.")
        if row.evaluation is not None:
            if row.evaluation["pass_at_1"] != body.pass_at_1:
                raise IdempotencyMismatch(f"Round {round} was evaluated with another result.")
            return
        if len(body.by_topic) > runs.sets_of(session, run_row)[SetKind.TEST].problems:
            raise Invalid("by_topic has more topics than the test set has problems.")
        row.evaluation = body.model_dump(mode="json")
        record(session, run_row.id, "evaluated", round=round, pass_at_1=body.pass_at_1)

    await run.write(work)
    return Response(status_code=204)
