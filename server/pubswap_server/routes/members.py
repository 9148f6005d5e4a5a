"""Invites, enrolment, tokens, and who takes part."""

from fastapi import APIRouter, Request, Response
from sqlalchemy.orm import Session

from pubswap_protocol import paths
from pubswap_protocol.errors import Conflict
from pubswap_protocol.messages import (
    CreateInvite,
    Enroll,
    Hello,
    Invite,
    MemberList,
    Membership,
    Progress,
)
from pubswap_protocol.verifiers import verifier_version
from pubswap_server import members, runs
from pubswap_server.auth import bearer, require_own
from pubswap_server.dependencies import MemberDep, OperatorDep, RandomKey, ServicesDep

router = APIRouter(tags=["members"])


@router.post(
    paths.RUN_INVITES, operation_id="create_invite", status_code=201, summary="Make an invite"
)
async def create_invite(
    run: str, body: CreateInvite, operator: OperatorDep, services: ServicesDep
) -> Invite:
    """Good once, and for a time; it is shown in this answer only."""

    def work(session: Session) -> Invite:
        return members.invite(session, runs.find(session, run, operator), body)

    return await services.database.write(work)


@router.post(paths.ENROLL, operation_id="enroll", status_code=201, summary="Use an invite")
async def enroll(
    body: Enroll, services: ServicesDep, idempotency_key: RandomKey = None
) -> Membership:
    """Needs no token. The token in the answer is shown once, and only its SHA-256 is stored."""
    return await services.database.write(
        lambda session: members.enroll(session, body.invite, idempotency_key)
    )


@router.post(paths.TOKEN, operation_id="rotate_token", summary="A new token for the old one")
async def rotate_token(
    member: MemberDep,
    request: Request,
    services: ServicesDep,
    idempotency_key: RandomKey = None,
) -> Membership:
    """The old token is worthless from then on, but for asking again with the same key."""
    old = bearer(request.headers.get("Authorization"))
    return await services.database.write(
        lambda session: members.rotate(session, member, old, idempotency_key)
    )


@router.get(paths.RUN_MEMBERS, operation_id="list_members", summary="Who takes part")
async def list_members(run: str, operator: OperatorDep, services: ServicesDep) -> MemberList:
    """With progress and bytes."""

    def look(session: Session) -> MemberList:
        return MemberList(members=members.views(session, runs.find(session, run, operator).id))

    await services.hints.flush()
    return await services.database.read(look)


@router.delete(
    paths.RUN_MEMBER, operation_id="revoke_member", status_code=204, summary="Revoke a member"
)
async def revoke_member(
    run: str, member: str, operator: OperatorDep, services: ServicesDep
) -> Response:
    """Its token is worthless at once; rounds no longer wait for it."""

    def work(session: Session) -> None:
        members.revoke(session, runs.find(session, run, operator), member)

    await services.database.write(work)
    return Response(status_code=204)


@router.post(paths.HELLO, operation_id="hello", status_code=204, summary="Compare base models")
async def hello(run: str, body: Hello, member: MemberDep, services: ServicesDep) -> Response:
    """409 `base_model_mismatch` unless config, tokenizer and weights are the run's."""

    def work(session: Session) -> None:
        row = runs.find(session, run, member)
        runs.model_of(row).check_same(body)
        wanted = verifier_version(runs.settings_of(row).verifier)
        if body.verifier_version != wanted:
            raise Conflict(
                f"The run's verifier is {wanted}, yours is {body.verifier_version}; install the "
                "same versions."
            )
        members.seen(session, member)

    await services.database.write(work)
    return Response(status_code=204)


@router.post(paths.HEARTBEAT, operation_id="heartbeat", status_code=204, summary="Tell progress")
async def heartbeat(run: str, body: Progress, member: MemberDep, services: ServicesDep) -> Response:
    """Numbers only. They are a hint: kept in memory, and on the disk about a second later."""
    require_own(run, member)
    services.hints.seen(member, body)
    return Response(status_code=204)
