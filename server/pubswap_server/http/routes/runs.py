"""The operator's routes: runs, their files, their state."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeVar

import structlog
from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.orm import Session

from pubswap_protocol import paths
from pubswap_protocol.base.tokenizer import load_tokenizer
from pubswap_protocol.bounds import MAX_COUNT, MAX_NUMBER, MAX_SET_BYTES, NAME_PATTERN, Word
from pubswap_protocol.errors import (
    BaseModelMismatch,
    DigestMismatch,
    Forbidden,
    Invalid,
    InvalidProblems,
    NotFound,
    UnknownRun,
    WrongState,
)
from pubswap_protocol.messages import (
    BlobReceipt,
    ChangeRun,
    CreateRun,
    Events,
    Role,
    Rollback,
    RoundList,
    RunList,
    RunState,
    RunView,
    SetKind,
    SetReceipt,
    StepList,
)
from pubswap_protocol.model import fingerprint
from pubswap_protocol.problems import check_topics, read_set
from pubswap_protocol.tensors.adapter import AdapterFile
from pubswap_protocol.verifiers.registry import check_judges
from pubswap_protocol.verifiers.verifier import Verifier
from pubswap_server.clock import now
from pubswap_server.database.tables import RoundRow, RunRow, SetRow
from pubswap_server.http.blob_response import BlobResponse
from pubswap_server.http.bodies import ADAPTER_REPLIES, CONDITIONAL, JSONL, SET_REPLIES, binary_body
from pubswap_server.http.dependencies import (
    Number,
    OperatorDep,
    OperatorRun,
    PrincipalRun,
    RandomKey,
    ServicesDep,
)
from pubswap_server.http.plain_json import PlainJsonRoute
from pubswap_server.http.upload_body import receive
from pubswap_server.runs import events, history, retention, rounds, runs
from pubswap_server.runs.activity import read_activity, read_end
from pubswap_server.runs.auth import MemberPrincipal, Operator, Principal
from pubswap_server.runs.concerns import read_concerns
from pubswap_server.runs.progress import steps
from pubswap_server.runs.state import paused
from pubswap_server.services import Services
from pubswap_server.storage.spool import Received

T = TypeVar("T")

log = structlog.get_logger(__name__)

NUMBERS_A_REQUEST = 1000  # on a page that costs as much as any other request

router = APIRouter(tags=["runs"], route_class=PlainJsonRoute)


@router.post(paths.RUNS, status_code=201, summary="Create a run")
async def create_run(
    body: CreateRun, operator: OperatorDep, services: ServicesDep, idempotency_key: RandomKey = None
) -> RunView:
    """The run does not start yet: send the tokenizer and the sets, then open it."""
    await to_thread.run_sync(services.check_judged, body.settings.verifier, {})
    row = await services.database.write(lambda session: runs.create(session, body, idempotency_key))
    return await _viewed(row.id, operator, services)


@router.get(paths.RUNS, summary="List runs, newest first", responses={404: {}})
async def list_runs(
    operator: OperatorDep,
    services: ServicesDep,
    after: Annotated[
        str | None,
        Query(pattern="^[0-9a-f]{1,32}$", description="The id of the last run that you have."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 100,
) -> RunList:
    """Without their members. An empty page is the end."""
    return await services.database.read(
        lambda session: RunList(runs=runs.page(session, after, limit))
    )


@router.get(paths.RUN, summary="Get a run")
async def show_run(run: PrincipalRun) -> RunView:
    """Members see their own run, without the list of members."""

    def work(session: Session, row: RunRow) -> RunView:
        view, end = runs.view(session, row, run.principal), read_end(session, row)
        left = max(0.0, (end - now()).total_seconds()) if end is not None else None
        activity = None
        if isinstance(run.principal, Operator):
            concerns = read_concerns(session, row)
            noted = f" Note: {concerns}" if concerns else ""
            activity = read_activity(session, row).text + noted
        return view.model_copy(update={"activity": activity, "left_seconds": left})

    await run.services.heartbeats.flush()
    view = await run.read(work)
    presigned = run.services.presigned
    return view.model_copy(update={"bucket": presigned.url}) if presigned else view


@router.get(paths.ROUNDS, summary="List a run's rounds")
async def list_rounds(
    run: PrincipalRun,
    after: Annotated[
        int, Query(ge=-1, le=MAX_NUMBER, description="The last round that you have; -1 for none.")
    ] = -1,
    limit: Annotated[int, Query(ge=1, le=history.MAX_ROUNDS)] = history.MAX_ROUNDS,
) -> RoundList:
    """In order, from round 0. A page may have fewer than `limit`; an empty page is the end."""

    services = run.services
    await services.heartbeats.flush()

    def work(session: Session, row: RunRow) -> tuple[RoundList, int]:
        rounds = history.page(session, row.id, row.settings, after, limit)
        numbers = history.numbers_of(session, row.id, row.settings)
        return RoundList(rounds=rounds), len(rounds) * numbers

    page, numbers = await run.read(work)
    if isinstance(run.principal, MemberPrincipal):  # or a member could slow down others
        services.limits.members.charge(run.principal.id, numbers / NUMBERS_A_REQUEST)
    return page


@router.get(paths.STEPS, summary="List members' steps")
async def list_steps(
    run: OperatorRun,
    after: Annotated[
        str | None,
        Query(
            pattern=f"{NAME_PATTERN.removesuffix('$')}:[0-9]{{1,9}}:[0-9]{{1,9}}$",
            description="The last step that you have, as member:round:step.",
        ),
    ] = None,
) -> StepList:
    """By member, round and step: the figures of their heartbeats, as far as they are kept."""
    await run.services.heartbeats.flush()
    member, round_, step = after.split(":") if after else ("", 0, 0)
    place = (member, int(round_), int(step))
    return StepList(steps=await run.read(lambda session, row: steps.page(session, row.id, place)))


@router.put(
    paths.RUN_TOKENIZER,
    status_code=201,
    summary="Send the base model's tokenizer.json",
    openapi_extra=binary_body(paths.BYTES_TYPE, "The file as it is."),
)
async def put_tokenizer(run: OperatorRun, request: Request) -> BlobReceipt:
    """Its digest must equal the model card's. The coordinator decodes responses with it."""
    model = await run.read(lambda session, row: row.model)

    def check(received: Received) -> None:
        data = received.path.read_bytes()
        if fingerprint(data) != model.tokenizer_digest:
            raise BaseModelMismatch("This is not the tokenizer.json of the run's base model.")
        try:
            load_tokenizer(data)
        except ValueError as error:
            raise Invalid(str(error)) from None

    received, _ = await _stored(run, request, check)

    def note(session: Session, row: RunRow) -> None:
        row.tokenizer = received.digest

    await run.write(note)
    return BlobReceipt(digest=received.digest, size=received.size)


@router.put(
    paths.RUN_INITIAL,
    status_code=201,
    summary="Send the adapter that the run starts from",
    openapi_extra=binary_body(paths.TENSORS_TYPE, "The canonical file of all the run's tensors."),
)
async def put_initial_adapter(run: OperatorRun, request: Request) -> BlobReceipt:
    """Its digest must be the settings' `initial_adapter`; only until the run is open."""
    row = await run.read(lambda session, row: row)
    _require_created(row)
    layout = row.model.layout

    def check(received: Received) -> None:
        digest = AdapterFile(received.path, layout).digest()
        announced = row.settings.initial_adapter
        if digest != announced:
            raise DigestMismatch(
                f"The run's initial adapter is {announced or 'none'}, not {digest}."
            )

    received, _ = await _stored(run, request, check, layout.file_bytes)

    def note(session: Session, row: RunRow) -> None:
        _require_created(row)
        session.merge(RoundRow(run_id=row.id, round=0, adapter=received.digest))

    await run.write(note)
    return BlobReceipt(digest=received.digest, size=received.size)


def _require_created(row: RunRow) -> None:
    if row.state != RunState.CREATED:
        raise WrongState(f"The run is {row.state}; its files can only be sent before it is opened.")


async def _stored(
    run: OperatorRun, request: Request, check: Callable[[Received], T], limit: int = MAX_SET_BYTES
) -> tuple[Received, T]:
    """Check the request's body, store it as a blob, and return it with the check's result."""
    received = await receive(run.services, request, limit)
    try:
        checked = await to_thread.run_sync(check, received)
        await to_thread.run_sync(run.services.blobs.keep, received.path, received.digest)
    finally:
        received.discard()
    return received, checked


@router.put(
    paths.RUN_SET,
    status_code=201,
    summary="Send the public or the test set",
    openapi_extra=binary_body(paths.JSONL_TYPE, JSONL),
)
async def put_set(run: OperatorRun, kind: SetKind, request: Request) -> SetReceipt:
    """Replaces an earlier one until the run is open."""
    row = await run.read(lambda session, row: row)  # refuse before the body is read
    count = partial(_count_problems, kind=kind, verifier=row.settings.verifier)
    received, problems = await _stored(run, request, count)

    def note(session: Session, row: RunRow) -> None:
        _require_created(row)
        digest = received.digest
        session.merge(SetRow(run_id=row.id, kind=kind, digest=digest, problems=problems))

    await run.write(note)
    return SetReceipt(kind=kind, problems=problems, digest=received.digest)


def _count_problems(received: Received, kind: SetKind, verifier: Verifier) -> int:
    problems = read_set(received.path.read_bytes(), f"the {kind} set")
    if not problems:
        raise InvalidProblems(f"The {kind} set has no problems.")
    if kind is SetKind.TEST:
        check_topics(problems, "The test set")
    check_judges(problems, verifier, f"The {kind} set")
    return len(problems)


@router.get(
    paths.RUN_SET,
    summary="Get the public set or, for evaluators, the test set",
    response_class=Response,
    responses=SET_REPLIES,
    openapi_extra=CONDITIONAL,
)
async def get_set(run: PrincipalRun, kind: SetKind) -> Response:
    """Clients never see the test set.

    X-PubSwap-Verifiers has the versions of the verifiers that problems name, if there are any.
    Whoever judges needs the same.
    """
    services = run.services

    def work(session: Session, row: RunRow) -> tuple[str, Verifier]:
        reader = run.principal
        trains = isinstance(reader, MemberPrincipal) and reader.role is not Role.EVALUATOR
        if kind is SetKind.TEST and trains:
            raise Forbidden("The test set is for the evaluator alone.")
        stored = session.get(SetRow, (row.id, kind))
        if stored is None:
            raise NotFound(f"The {kind} set has not been sent yet.")
        return stored.digest, row.settings.verifier

    digest, verifier = await run.read(work)
    path = await to_thread.run_sync(services.blobs.path, digest)
    reply = BlobResponse(path, digest, paths.JSONL_TYPE, services.incoming.budget)
    named = partial(services.versions_named, digest, verifier)
    if versions := await to_thread.run_sync(named, limiter=services.naming):
        reply.headers[paths.VERIFIERS_HEADER] = versions
    return reply


@router.post(paths.RUN_OPEN, summary="Open a run for members")
async def open_run(run: OperatorRun) -> RunView:
    """Makes the initial adapter (B = 0, A from the seed) unless it was sent.

    Needs the tokenizer and both sets.

    Refused if a prompt in them has more tokens than the run allows.
    """

    def check(session: Session, row: RunRow) -> tuple[RunRow, dict[SetKind, str]]:
        runs.check_complete(session, row)
        sets = runs.sets_of(session, row)
        return row, {kind: each.digest for kind, each in sets.items()}

    row, sets = await run.read(check)
    layout, settings = row.model.layout, row.settings

    def make() -> str:
        if row.state == RunState.CREATED:
            run.services.check_lengths(settings, row.tokenizer or "", sets)
        return run.services.initial_adapter(layout, settings)

    initial = await to_thread.run_sync(make)

    def open_checked(session: Session, current: RunRow) -> None:
        if check(session, current) != (current, sets) or current.settings != settings:
            raise WrongState("The run was changed while it was being opened; open it again.")
        runs.open_run(session, current, initial)

    return await _changed(run, open_checked)


@router.patch(paths.RUN_SETTINGS, summary="Change the number of clients")
async def change_run(run: OperatorRun, body: ChangeRun) -> RunView:
    """Only before the run starts. Refused if other settings need more clients."""
    return await _changed(run, partial(runs.change, change=body))


@router.post(paths.RUN_START, summary="Start a run")
async def start_run(run: OperatorRun) -> RunView:
    """Begins round 1. Refused while clients are missing."""
    return await _changed(run, runs.start)


@router.post(paths.RUN_PAUSE, summary="Pause a run")
async def pause_run(run: OperatorRun) -> RunView:
    """Gives out no new work, and takes no responses and updates: members hold them.

    Deadlines stand still. Evaluators go on.
    """
    return await _changed(run, partial(runs.move, transition=paused))


@router.post(paths.RUN_RESUME, summary="Resume a run")
async def resume_run(run: OperatorRun) -> RunView:
    """Gives out work again. Members send what they have held; deadlines count anew."""
    return await _changed(run, rounds.resume)


@router.post(paths.RUN_CANCEL, summary="Cancel a run")
async def cancel_run(run: OperatorRun) -> RunView:
    """Ends the run for good and keeps its adapters."""
    return await _changed(run, runs.cancel)


@router.post(paths.RUN_ARCHIVE, summary="Archive a run")
async def archive_run(run: OperatorRun) -> RunView:
    """For an ended run. Deletes all adapters but the final and the best; keeps all records."""
    return await _changed(run, retention.archive)


@router.delete(paths.RUN, status_code=204, summary="Delete a run")
async def delete_run(run: Word, operator: OperatorDep, services: ServicesDep) -> Response:
    """For an ended run, by its id only, as a name can be reused. Nothing of the run remains.

    Its members' tokens become invalid.
    """

    def work(session: Session) -> str:
        row = session.get(RunRow, run, with_for_update=True)
        if row is None:
            raise UnknownRun(f"There is no run with the id {run!r}; a name will not do here.")
        retention.delete_run(session, row)
        return row.name

    name = await services.database.write(work)
    log.info("run deleted", run=run, name=name)
    return Response(status_code=204)


@router.post(paths.RUN_ROLLBACK, summary="Roll a run back")
async def roll_back_run(run: OperatorRun, body: Rollback) -> RunView:
    """The next round starts again from this adapter. Later rounds remain only in the log."""
    return await _changed(run, partial(rounds.roll_back, to=body.to))


@router.post(paths.EXCLUDE, summary="Exclude an update")
async def exclude_update(run: OperatorRun, round: Number, member: Word) -> RunView:
    """From the current round, even while it is being averaged. Below its quorum the round waits."""
    return await _changed(run, lambda session, row: rounds.exclude(session, row, round, member))


async def _changed(run: OperatorRun, work: Callable[[Session, RunRow], None]) -> RunView:
    def change(session: Session, row: RunRow) -> str:
        work(session, row)
        return row.id

    changed = await run.write(change)  # the name may belong to another run by now
    return await _viewed(changed, run.principal, run.services)


async def _viewed(run: str, principal: Principal, services: Services) -> RunView:
    return await services.database.read(
        lambda session: runs.view(session, runs.find(session, run, principal), principal)
    )


@router.get(paths.RUN_EVENTS, summary="Read a run's log")
async def list_events(
    run: OperatorRun,
    after: Annotated[
        int, Query(ge=0, le=MAX_COUNT, description="The id of the last event that you have.")
    ] = 0,
) -> Events:
    """At most 500 events, oldest first."""
    return Events(
        events=await run.read(lambda session, row: events.events_after(session, row.id, after))
    )


@router.get(
    paths.RUN_ADAPTER,
    summary="Download a global adapter: final, best, or a round's number",
    response_class=Response,
    responses=ADAPTER_REPLIES,
    openapi_extra=CONDITIONAL,
)
async def get_adapter(run: PrincipalRun, which: Word) -> Response:
    """`final` is the last round's so far; `best` has the highest pass@1.

    X-PubSwap-Round is the adapter's round; 0 is the initial one, untrained unless the operator sent
    one.
    """

    services = run.services

    def work(session: Session, row: RunRow) -> tuple[int, str]:
        return history.chosen(session, row.id, which)

    round_, digest = await run.read(work)
    path = await to_thread.run_sync(services.blobs.path, digest)
    reply = BlobResponse(path, digest, paths.TENSORS_TYPE, services.incoming.budget)
    reply.headers[paths.ROUND_HEADER] = str(round_)
    return reply
