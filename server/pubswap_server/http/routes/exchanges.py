"""Public steps: the prompts, the responses, and what the exchange gives back."""

from functools import partial
from operator import itemgetter

from anyio import to_thread
from fastapi import APIRouter, Request, Response
from sqlalchemy.orm import Session

from pubswap_protocol import paths
from pubswap_protocol.errors import InvalidResponses
from pubswap_protocol.messages import PublicPrompt, Receipt, Role, SwapPrompts
from pubswap_protocol.tensors.responses import Response as ModelResponse
from pubswap_protocol.tensors.responses import ResponseRules, decode_responses
from pubswap_server.clock import now
from pubswap_server.database.tables import RunRow, SetRow
from pubswap_server.exchange import exchanges
from pubswap_server.exchange.prompts import choose as choose_prompts
from pubswap_server.exchange.prompts import to_be_chosen
from pubswap_server.http.bodies import EXCHANGED_REPLIES, RESPONSES, binary_body
from pubswap_server.http.dependencies import (
    ClientRun,
    IdempotencyKey,
    Number,
    PrincipalRun,
    SwapNumber,
    Wait,
)
from pubswap_server.http.plain_json import PlainJsonRoute
from pubswap_server.http.upload_body import receive
from pubswap_server.runs import runs, traffic
from pubswap_server.runs.auth import MemberPrincipal, require_going, require_own
from pubswap_server.runs.snapshot import settled, waits_for

router = APIRouter(tags=["public steps"], route_class=PlainJsonRoute)


@router.get(paths.SWAP, summary="A public step's prompts")
async def get_swap(run: PrincipalRun, round: Number, swap: SwapNumber) -> SwapPrompts:
    """The same for every client: a function of the seed, the round and the step.

    Where the run chooses its prompts by what they have shown, it does so for the first client
    that asks, and keeps to it.
    """
    principal, services = run.principal, run.services
    if isinstance(principal, MemberPrincipal):
        require_going(principal.cancelled)

    def undecided(session: Session, row: RunRow) -> bool:
        exchanges.check_step(row, round, swap)
        return to_be_chosen(session, row, round, swap)

    def choose(session: Session, row: RunRow) -> None:
        choose_prompts(session, row, round, swap, services.past_counts)

    takes_part = isinstance(principal, MemberPrincipal) and principal.role is Role.CLIENT
    if takes_part and await run.read(undecided):
        await run.write(choose)
    _, rules, digest = await run.read(partial(_asked, round=round, swap=swap))
    problems = await to_thread.run_sync(services.problems, digest)
    prompts = [PublicPrompt(index=index, problem=problems[index]) for index in rules.prompts]
    return SwapPrompts(round=round, swap=swap, prompts=prompts)


def _asked(
    session: Session, row: RunRow, round: int, swap: int
) -> tuple[RunRow, ResponseRules, str]:
    """A public step's run and prompts, and the digest of the set that they are of."""
    rules = exchanges.rules_of(session, row, round, swap)
    return row, rules, session.get_one(SetRow, (row.id, "public")).digest


@router.post(
    paths.SWAP_RESPONSES,
    summary="Hand in responses to the prompts",
    openapi_extra=binary_body(paths.TENSORS_TYPE, RESPONSES),
)
async def submit_responses(
    run: ClientRun,
    round: Number,
    swap: SwapNumber,
    request: Request,
    idempotency_key: IdempotencyKey = None,
) -> Receipt:
    """Which are correct is decided here, from the tokens. Late ones answer `late, unused`.

    A verifier that may take long decides after the receipt; the exchange waits for its verdicts.
    """
    member, services = run.principal, run.services

    row, rules, public = await run.read(partial(_asked, round=round, swap=swap))
    received = await receive(services, request, rules.max_bytes())
    arrived = now()
    try:
        before = await services.database.read(
            lambda session: exchanges.earlier(session, row, member, round, swap, received.digest)
        )
        if before is not None:
            return before
        data = await to_thread.run_sync(received.path.read_bytes)
        groups = await to_thread.run_sync(_decode, data, rules)
        known = await to_thread.run_sync(services.problems, public)
        problems = [known[index] for index in rules.prompts]
        correct = await services.verification.at_once(
            runs.settings_of(row).verifier, row.tokenizer or "", problems, groups
        )
        await to_thread.run_sync(services.blobs.keep, received.path, received.digest)
    finally:
        received.discard()

    def work(session: Session, locked: RunRow) -> Receipt:
        traffic.count(session, row.id, round, member.name, "responses_up", received.size)
        donatable = _donatable(row, groups)
        return exchanges.submit(
            *(session, locked, member, round, swap, received.digest, correct, donatable),
            arrived=arrived,
        )

    receipt = await run.write(work)
    services.verification.add((row.id, round, swap, member.name))
    return receipt


def _decode(data: bytes, rules: ResponseRules) -> list[list[ModelResponse]]:
    groups = decode_responses(data, rules)
    if any(response.donated for group in groups for response in group):
        raise InvalidResponses("`donated` is the coordinator's to say; send zeros.")
    return groups


def _donatable(row: RunRow, groups: list[list[ModelResponse]]) -> list[list[bool]] | None:
    most = runs.settings_of(row).swap.max_donated_tokens
    if most is None:
        return None
    return [[len(response.tokens) <= most for response in group] for group in groups]


@router.get(
    paths.SWAP_EXCHANGED,
    summary="The responses to train on",
    response_class=Response,
    responses=EXCHANGED_REPLIES,
)
async def get_exchanged(
    run: ClientRun, round: Number, swap: SwapNumber, wait: Wait = 0
) -> Response:
    """204 while the exchange is open. 409 `round_closed`: train on your own responses.

    If the run is paused, the 204's X-PubSwap-Waits-For says since when.
    """
    member, services = run.principal, run.services
    require_own(run.name, member)

    async def state() -> tuple[bool, str | None]:
        snapshot = await services.snapshots.get(run.name)
        paused = waits_for(snapshot) if snapshot.paused_since is not None else None
        return settled(snapshot, member, round, swap), paused

    seconds = min(wait, services.settings.max_wait_seconds)
    with services.metrics.waiting.track_inprogress():
        ready, paused = await services.changes.until(run.name, state, itemgetter(0), seconds)
    if not ready:
        headers = {paths.WAITS_HEADER: paused} if paused is not None else {}
        return Response(status_code=204, headers=headers)
    # Who asks may have been revoked while it waited.
    rollbacks = await run.read(lambda session, row: row.rollbacks)
    data = await services.answers.answer(
        (run.name, rollbacks, round, swap),
        member.name,
        lambda: run.read(lambda session, row: exchanges.closed(session, row, round, swap)),
    )
    services.heartbeats.downloaded(member, round, "responses_down", len(data))
    return Response(data, media_type=paths.TENSORS_TYPE)
