"""Members' routes in a round: tasks, updates, evaluations."""

from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Response
from sqlalchemy.orm import Session

from pubswap_protocol import digests, paths
from pubswap_protocol.bounds import Word
from pubswap_protocol.errors import NotFound, RoundClosed
from pubswap_protocol.messages import FullEvaluation, Receipt, SubmitUpdate, Task, TaskKind
from pubswap_server.database.tables import RunRow
from pubswap_server.exchange import exchanges
from pubswap_server.http.dependencies import (
    ClientRun,
    EvaluatorRun,
    MemberDep,
    Number,
    OperatorRun,
    Rollbacks,
    RunAccess,
    ServicesDep,
    Wait,
)
from pubswap_server.http.plain_json import PlainJsonRoute
from pubswap_server.monitoring.webhook import Notice
from pubswap_server.runs import evaluations, rounds
from pubswap_server.runs.auth import MemberPrincipal, require_accepted, require_own
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
    rollbacks, public_steps = await run.read(
        lambda session, row: (row.rollbacks, exchanges.closed_steps(session, row, round_))
    )
    for public_step in public_steps:
        load = partial(
            run.read_for_all, partial(exchanges.closed, round_=round_, public_step=public_step)
        )
        with suppress(RoundClosed, NotFound):
            key = run.name, rollbacks, round_, public_step
            received += await services.answers.gifts(key, member, load)
    return received


@router.post(paths.EVALUATION, status_code=204, summary="Hand in an evaluation")
async def submit_evaluation(run: EvaluatorRun, round: Number, body: FullEvaluation) -> Response:
    """For the global adapter of a round; round 0 is the base model."""

    def work(session: Session, row: RunRow) -> Notice | None:
        is_new = evaluations.submit(session, row, round, body)
        if not is_new or body.warning is None:
            return None
        command = f"pubswap run show {row.name} --responses"
        words = f"Round {round}: {body.warning}. Read them: `{command}`"
        return Notice(row.id, row.name, "warning", words)

    run.services.webhook.put(await run.write(work))
    return Response(status_code=204)


@router.get(paths.EVALUATION, summary="Read a round's evaluation and some of its responses")
async def get_evaluation(run: OperatorRun, round: Number) -> FullEvaluation:
    """Members never see them, because they have the questions and answers of the test set.

    Kept for round 0 and the last evaluated rounds.
    """
    return await run.read(lambda session, row: evaluations.read(session, row, round))
