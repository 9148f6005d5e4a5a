"""Invites, enrolment, tokens, and who takes part."""

from collections.abc import Callable

from fastapi import APIRouter, Request, Response
from sqlalchemy.orm import Session

from pubswap_protocol import paths
from pubswap_protocol.bounds import Word
from pubswap_protocol.errors import PubSwapError, Unauthenticated
from pubswap_protocol.messages import (
    BindCertificate,
    CreateInvite,
    Enroll,
    Hello,
    Invite,
    MemberList,
    Membership,
    Progress,
    Reissue,
)
from pubswap_server.database.tables import RunRow
from pubswap_server.http.dependencies import (
    CertificateDep,
    MemberDep,
    OperatorDep,
    PeerDep,
    RandomKey,
    ServicesDep,
)
from pubswap_server.http.plain_json import PlainJsonRoute
from pubswap_server.runs import members, runs
from pubswap_server.runs.auth import Operator, bearer, require_going, require_own, sha256

router = APIRouter(tags=["members"], route_class=PlainJsonRoute)


@router.post(
    paths.RUN_INVITES, operation_id="create_invite", status_code=201, summary="Make an invite"
)
async def create_invite(
    run: Word, body: CreateInvite, operator: OperatorDep, services: ServicesDep
) -> Invite:
    """Good once, and for a time; it is shown in this answer only."""

    def work(session: Session) -> Invite:
        return members.invite(session, runs.find(session, run, operator), body)

    return await services.database.write(work)


@router.post(
    paths.ENROLL,
    operation_id="enroll",
    status_code=201,
    summary="Use an invite",
    responses={401: {}, 410: {}, 429: {}},
)
async def enroll(
    body: Enroll,
    services: ServicesDep,
    peer: PeerDep,
    certificate: CertificateDep,
    idempotency_key: RandomKey = None,
) -> Membership:
    """Needs no token. The token in the answer is shown once, and only its SHA-256 is stored."""
    services.limits.check_peer(peer, sha256(body.invite))
    try:
        return await services.database.write(
            lambda session: members.enroll(session, body.invite, certificate, idempotency_key)
        )
    except Unauthenticated:
        services.limits.failed(peer)
        raise


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
async def list_members(run: Word, operator: OperatorDep, services: ServicesDep) -> MemberList:
    """With progress and bytes."""

    def look(session: Session) -> MemberList:
        return MemberList(members=members.views(session, runs.find(session, run, operator).id))

    await services.heartbeats.flush()
    return await services.database.read(look)


@router.delete(
    paths.RUN_MEMBER, operation_id="revoke_member", status_code=204, summary="Revoke a member"
)
async def revoke_member(
    run: Word, member: Word, operator: OperatorDep, services: ServicesDep
) -> Response:
    """Its token is worthless at once and for good; rounds no longer wait for it."""
    return await _decided(run, member, members.revoke, operator, services)


@router.post(
    paths.RUN_MEMBER_SUSPEND, operation_id="suspend_member", status_code=204, summary="Suspend"
)
async def suspend_member(
    run: Word, member: Word, operator: OperatorDep, services: ServicesDep
) -> Response:
    """Refused with 403 `suspended` until reinstated; what it handed in before counts."""
    return await _decided(run, member, members.suspend, operator, services)


@router.post(
    paths.RUN_MEMBER_REINSTATE,
    operation_id="reinstate_member",
    status_code=204,
    summary="Reinstate",
)
async def reinstate_member(
    run: Word, member: Word, operator: OperatorDep, services: ServicesDep
) -> Response:
    """A suspended member goes on, and rounds wait for it again."""
    return await _decided(run, member, members.reinstate, operator, services)


@router.post(
    paths.RUN_MEMBER_REISSUE,
    operation_id="reissue_member",
    status_code=201,
    summary="Make another invite for a member",
)
async def reissue_member(
    run: Word, member: Word, body: Reissue, operator: OperatorDep, services: ServicesDep
) -> Invite:
    """For a token that was lost: enrolling with it replaces the token, which works until then."""

    def work(session: Session) -> Invite:
        row = runs.find(session, run, operator)
        return members.reissue(session, row, member, body.expires_in_seconds)

    return await services.database.write(work)


@router.put(
    paths.RUN_MEMBER_CERTIFICATE,
    operation_id="bind_certificate",
    status_code=204,
    summary="Bind a token to another client certificate",
)
async def bind_certificate(
    run: Word, member: Word, body: BindCertificate, operator: OperatorDep, services: ServicesDep
) -> Response:
    """For a certificate that was renewed; before, enrolling has bound the first one."""

    def work(session: Session, row: RunRow, name: str) -> None:
        members.bind(session, row, name, body.sha256)

    return await _decided(run, member, work, operator, services)


async def _decided(
    run: str,
    member: str,
    decide: Callable[[Session, RunRow, str], None],
    operator: Operator,
    services: ServicesDep,
) -> Response:
    def work(session: Session) -> None:
        decide(session, runs.find(session, run, operator, lock=True), member)

    await services.database.write(work)
    return Response(status_code=204)


@router.post(paths.HELLO, operation_id="hello", status_code=204, summary="Compare base models")
async def hello(run: Word, body: Hello, member: MemberDep, services: ServicesDep) -> Response:
    """409 `base_model_mismatch` unless config, tokenizer and weights are the run's.

    A member takes part from the first hello that is not refused to the first that is.
    """

    def work(session: Session) -> PubSwapError | None:
        refusal = runs.refusal_of(runs.find(session, run, member), body)
        members.accept(session, member, refusal is None)
        return refusal

    if (refusal := await services.database.write(work)) is not None:
        raise refusal
    return Response(status_code=204)


@router.post(paths.HEARTBEAT, operation_id="heartbeat", status_code=204, summary="Tell progress")
async def heartbeat(
    run: Word, body: Progress, member: MemberDep, services: ServicesDep
) -> Response:
    """Numbers only. They are a hint: kept in memory, and on the disk about a second later.

    409 `run_cancelled` once the operator has cancelled the run: stop training.
    """
    require_own(run, member)
    require_going(member.cancelled)
    services.heartbeats.seen(member, body)
    return Response(status_code=204)
