"""Public steps: the prompts, the responses, and the exchange's result."""

from functools import partial
from pathlib import Path

from anyio import to_thread
from fastapi import APIRouter, Request, Response
from sqlalchemy.orm import Session

from pubswap_protocol import paths
from pubswap_protocol.errors import InvalidResponses
from pubswap_protocol.messages import PublicPrompt, PublicStepPrompts, Receipt
from pubswap_protocol.problems import Problem
from pubswap_protocol.tensors.response_form import ResponseForm
from pubswap_protocol.tensors.responses import UNVERIFIED, ResponseRules, decode_responses
from pubswap_protocol.tensors.responses import Response as ModelResponse
from pubswap_server.clock import now
from pubswap_server.database.tables import MemberRow, RunRow, SetRow, SubmissionRow
from pubswap_server.exchange import exchanges
from pubswap_server.exchange.sampling import check_seeds, sampling_seed
from pubswap_server.http.bodies import EXCHANGED_REPLIES, RESPONSES, binary_body
from pubswap_server.http.dependencies import ClientRun, Number, PublicStepNumber, Rollbacks, Wait
from pubswap_server.http.plain_json import PlainJsonRoute
from pubswap_server.http.upload_body import receive
from pubswap_server.runs import runs, traffic
from pubswap_server.runs.auth import require_own
from pubswap_server.runs.snapshot import RunSnapshot, settled, waits_for

router = APIRouter(tags=["public steps"], route_class=PlainJsonRoute)


@router.get(paths.PUBLIC_STEP, summary="Get the prompts of a public step")
async def get_public_step(
    run: ClientRun, round: Number, public_step: PublicStepNumber, rollbacks: Rollbacks = None
) -> PublicStepPrompts:
    """The same for every client, except for its sampling seed: they follow from the run's seed."""

    def asked(session: Session, row: RunRow) -> tuple[RunRow, ResponseRules, str]:
        return _asked(session, row, round, public_step, rollbacks)

    row, rules, digest = await run.read(asked)
    problems = await to_thread.run_sync(run.services.problems, digest)
    prompts = [PublicPrompt(index=index, problem=problems[index]) for index in rules.prompts]
    seed = _seed(row, run.principal.name, round, public_step)
    return PublicStepPrompts(
        round=round, public_step=public_step, prompts=prompts, sampling_seed=seed
    )


def _seed(row: RunRow, member: str, round_: int, public_step: int) -> int | None:
    secret = row.sampling_secret
    return sampling_seed(secret, member, round_, public_step) if secret is not None else None


def _asked(
    session: Session, row: RunRow, round: int, public_step: int, rollbacks: int | None
) -> tuple[RunRow, ResponseRules, str]:
    """A public step's run and response rules, and the public set's digest."""
    rules = exchanges.rules_of(session, row, round, public_step, rollbacks)
    return row, rules, session.get_one(SetRow, (row.id, "public")).digest


@router.post(
    paths.PUBLIC_STEP_RESPONSES,
    summary="Hand in responses to public prompts",
    openapi_extra=binary_body(paths.TENSORS_TYPE, RESPONSES),
)
async def submit_responses(
    run: ClientRun,
    round: Number,
    public_step: PublicStepNumber,
    request: Request,
    rollbacks: Rollbacks = None,
) -> Receipt:
    """The coordinator verifies them from their tokens. Late ones get `late, unused`.

    A slow verifier decides after the receipt, and the exchange waits for its verdicts. After 422
    `invalid_responses` nobody waits for the member in this exchange. 409 `run_paused` during a
    pause: send them again once the run is resumed.
    """
    member, services = run.principal, run.services

    def asked(
        session: Session, row: RunRow
    ) -> tuple[RunRow, ResponseRules, str, SubmissionRow | None]:
        existing = exchanges.submitted(session, row, member, round, public_step)
        step = _asked(session, row, round, public_step, rollbacks)
        if existing is None:
            runs.require_resumed(row)
        return *step, existing

    row, rules, public, existing = await run.read(asked)
    received = await receive(services, request, rules.max_bytes())
    arrived, settings = now(), row.settings
    seed = _seed(row, member.name, round, public_step)

    def opened() -> tuple[list[list[ModelResponse]], list[Problem]]:
        groups, public_problems = _decode(received.path, rules, seed), services.problems(public)
        return groups, [public_problems[index] for index in rules.prompts]

    try:
        if existing is not None:
            return exchanges.same_receipt(existing, received.digest)
        try:
            groups, problems = await to_thread.run_sync(opened)
        except InvalidResponses as error:
            refuse = partial(exchanges.refuse, member=member, round_=round, public_step=public_step)
            await run.write(
                partial(refuse, reason=error.detail, arrived=arrived, rollbacks=rollbacks)
            )
            raise
        correct = await services.verification.at_once(
            settings, row.tokenizer or "", rules.form, problems, groups
        )
        donatable = await to_thread.run_sync(_donatable, groups, rules.form)
        await to_thread.run_sync(services.blobs.keep, received.path, received.digest)
    finally:
        received.discard()

    def work(session: Session, locked: RunRow) -> Receipt:
        traffic.count(session, {(row.id, round, member.name, "responses_up"): received.size})
        if seed is not None:  # unverified: sent without the seeds to check them by
            unverified = groups[0][0].seed == UNVERIFIED
            session.get_one(MemberRow, member.id).unverified = unverified
        return exchanges.submit(
            session,
            locked,
            member,
            round_=round,
            public_step=public_step,
            digest=received.digest,
            correct=correct,
            donatable=donatable,
            arrived=arrived,
            rollbacks=rollbacks,
        )

    receipt = await run.write(work)
    if correct is None:
        services.verification.add((row.id, round, public_step, member.name))
    return receipt


def _donatable(groups: list[list[ModelResponse]], form: ResponseForm) -> exchanges.Verdicts | None:
    """Which responses (P, K) peers may get; None if all."""
    marks = [
        [len(each.tokens) <= form.longest and form.donatable(each.tokens) for each in group]
        for group in groups
    ]
    return None if all(map(all, marks)) else marks


def _decode(path: Path, rules: ResponseRules, seed: int | None) -> list[list[ModelResponse]]:
    groups = decode_responses(path.read_bytes(), rules)
    if any(response.donated for group in groups for response in group):
        raise InvalidResponses("Only the coordinator sets `donated`; send zeros.")
    if any(response.donor for group in groups for response in group):
        raise InvalidResponses("Only the coordinator sets `donors`; leave it out.")
    check_seeds(groups, seed)
    return groups


@router.get(
    paths.PUBLIC_STEP_EXCHANGED,
    summary="Get the responses to train on",
    response_class=Response,
    responses=EXCHANGED_REPLIES,
)
async def get_exchanged(
    run: ClientRun,
    round: Number,
    public_step: PublicStepNumber,
    wait: Wait = 0,
    seeds: bool = False,
) -> Response:
    """204 while the exchange is open. 409 `round_closed`: train on your own responses.

    The 204's X-PubSwap-Waits-For names the members it waits for, and the deadline. With `seeds`,
    the file has the claimed sampling seed of each response, and the donor's number.
    """
    member, services = run.principal, run.services
    require_own(run.name, member)

    async def current() -> RunSnapshot:
        return await services.snapshots.get(run.name)

    def ready(snapshot: RunSnapshot) -> bool:
        return settled(snapshot, member, round, public_step)

    seconds = min(wait, services.settings.max_wait_seconds)
    with services.metrics.waiting.track_inprogress():
        snapshot = await services.changes.until(run.name, current, ready, seconds)
    if not ready(snapshot):
        reason = waits_for(snapshot, public_step)
        return Response(status_code=204, headers={paths.WAITS_HEADER: reason})
    data = await services.answers.answer(
        (run.name, snapshot.rollbacks, round, public_step),
        member.name,
        partial(run.read_for_all, partial(exchanges.closed, round_=round, public_step=public_step)),
        seeds,
    )
    services.heartbeats.downloaded(member, round, "responses_down", len(data))
    return Response(data, media_type=paths.TENSORS_TYPE)
