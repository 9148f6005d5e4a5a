"""Public steps: the prompts, the responses, and what the exchange gives back."""

from functools import partial

from anyio import to_thread
from fastapi import APIRouter, Request, Response
from sqlalchemy.orm import Session

from pubswap_protocol import paths
from pubswap_protocol.errors import InvalidResponses
from pubswap_protocol.messages import PublicPrompt, Receipt, SwapPrompts
from pubswap_protocol.tensors.responses import UNVERIFIED, ResponseRules, decode_responses
from pubswap_protocol.tensors.responses import Response as ModelResponse
from pubswap_server.clock import now
from pubswap_server.database.tables import MemberRow, RunRow, SetRow
from pubswap_server.exchange import exchanges
from pubswap_server.exchange.prompts import choose as choose_prompts
from pubswap_server.exchange.prompts import to_be_chosen
from pubswap_server.exchange.sampling import check_seeds, sampling_seed
from pubswap_server.http.bodies import EXCHANGED_REPLIES, RESPONSES, binary_body
from pubswap_server.http.dependencies import (
    ClientRun,
    Number,
    Rollbacks,
    SwapNumber,
    Wait,
)
from pubswap_server.http.plain_json import PlainJsonRoute
from pubswap_server.http.upload_body import receive
from pubswap_server.runs import runs, traffic
from pubswap_server.runs.auth import require_own
from pubswap_server.runs.snapshot import RunSnapshot, settled, waits_for

router = APIRouter(tags=["public steps"], route_class=PlainJsonRoute)


@router.get(paths.SWAP, summary="Get the prompts of a public step")
async def get_swap(
    run: ClientRun, round: Number, swap: SwapNumber, rollbacks: Rollbacks = None
) -> SwapPrompts:
    """They are the same for every client, except for its sampling seed.

    They follow from the run's seed and the step. If the run chooses prompts by earlier rewards, the
    first request decides, and the choice is stored.
    """

    def undecided(session: Session, row: RunRow) -> bool:
        exchanges.check_step(row, round, swap, rollbacks)
        return to_be_chosen(session, row, round, swap)

    if await run.read(undecided):
        await run.write(partial(choose_prompts, round_=round, swap=swap))
    asked = partial(_asked, round=round, swap=swap, rollbacks=rollbacks)
    row, rules, digest = await run.read(asked)
    problems = await to_thread.run_sync(run.services.problems, digest)
    prompts = [PublicPrompt(index=index, problem=problems[index]) for index in rules.prompts]
    seed = _seed(row, run.principal.name, round, swap)
    return SwapPrompts(round=round, swap=swap, prompts=prompts, sampling_seed=seed)


def _seed(row: RunRow, member: str, round_: int, swap: int) -> int | None:
    secret = row.sampling_secret
    return sampling_seed(secret, member, round_, swap) if secret is not None else None


def _asked(
    session: Session, row: RunRow, round: int, swap: int, rollbacks: int | None
) -> tuple[RunRow, ResponseRules, str]:
    """A public step's run and prompts, and the digest of the set that they are of."""
    rules = exchanges.rules_of(session, row, round, swap, rollbacks)
    return row, rules, session.get_one(SetRow, (row.id, "public")).digest


@router.post(
    paths.SWAP_RESPONSES,
    summary="Hand in responses to public prompts",
    openapi_extra=binary_body(paths.TENSORS_TYPE, RESPONSES),
)
async def submit_responses(
    run: ClientRun,
    round: Number,
    swap: SwapNumber,
    request: Request,
    rollbacks: Rollbacks = None,
) -> Receipt:
    """The coordinator verifies them from their tokens. Late ones get `late, unused`.

    A slow verifier decides after the receipt, and the exchange waits for its verdicts.
    """
    member, services = run.principal, run.services

    asked = partial(_asked, round=round, swap=swap, rollbacks=rollbacks)
    row, rules, public = await run.read(asked)
    received = await receive(services, request, rules.max_bytes())
    arrived, settings = now(), runs.settings_of(row)
    try:
        before = await services.database.read(
            lambda session: exchanges.earlier(session, row, member, round, swap, received.digest)
        )
        if before is not None:
            return before
        data = await to_thread.run_sync(received.path.read_bytes)
        seed = _seed(row, member.name, round, swap)
        groups = await to_thread.run_sync(_decode, data, rules, seed)
        known = await to_thread.run_sync(services.problems, public)
        problems = [known[index] for index in rules.prompts]
        correct = await services.verification.at_once(
            settings.verifier, row.tokenizer or "", problems, groups
        )
        await to_thread.run_sync(services.blobs.keep, received.path, received.digest)
    finally:
        received.discard()

    def work(session: Session, locked: RunRow) -> Receipt:
        traffic.count(session, {(row.id, round, member.name, "responses_up"): received.size})
        # Whether they came without the seeds by which they could be checked.
        unverified = seed is not None and groups[0][0].seed == UNVERIFIED
        session.get_one(MemberRow, member.id).unverified = unverified
        most, donatable = settings.swap.max_donated_tokens, None
        if most is not None:
            donatable = [[len(each.tokens) <= most for each in group] for group in groups]
        return exchanges.submit(
            *(session, locked, member, round, swap, received.digest, correct, donatable),
            arrived=arrived,
            rollbacks=rollbacks,
        )

    receipt = await run.write(work)
    services.verification.add((row.id, round, swap, member.name))
    return receipt


def _decode(data: bytes, rules: ResponseRules, seed: int | None) -> list[list[ModelResponse]]:
    groups = decode_responses(data, rules)
    if any(response.donated for group in groups for response in group):
        raise InvalidResponses("`donated` is the coordinator's to say; send zeros.")
    if any(response.donor for group in groups for response in group):
        raise InvalidResponses("`donors` is the coordinator's to say; leave it out.")
    check_seeds(groups, seed)
    return groups


@router.get(
    paths.SWAP_EXCHANGED,
    summary="Get the responses to train on",
    response_class=Response,
    responses=EXCHANGED_REPLIES,
)
async def get_exchanged(
    run: ClientRun, round: Number, swap: SwapNumber, wait: Wait = 0, seeds: bool = False
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
        return settled(snapshot, member, round, swap)

    seconds = min(wait, services.settings.max_wait_seconds)
    with services.metrics.waiting.track_inprogress():
        snapshot = await services.changes.until(run.name, current, ready, seconds)
    if not ready(snapshot):
        reason = waits_for(snapshot, swap)
        return Response(status_code=204, headers={paths.WAITS_HEADER: reason})
    data = await services.answers.answer(
        (run.name, snapshot.rollbacks, round, swap),
        member.name,
        partial(run.read_for_all, partial(exchanges.closed, round_=round, swap=swap)),
        seeds,
    )
    services.heartbeats.downloaded(member, round, "responses_down", len(data))
    return Response(data, media_type=paths.TENSORS_TYPE)
