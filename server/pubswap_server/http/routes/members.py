"""Invites, enrolment, tokens, and who takes part."""

from fastapi import APIRouter, Response
from sqlalchemy.orm import Session

from pubswap_protocol import paths
from pubswap_protocol.bounds import Word
from pubswap_protocol.errors import PubSwapError, Unauthenticated
from pubswap_protocol.messages import (
    Away,
    BindCertificate,
    CreateInvite,
    Enroll,
    Hello,
    Invite,
    MemberList,
    Membership,
    Progress,
    Reissue,
    Role,
)
from pubswap_server.http.dependencies import (
    CertificateDep,
    MemberDep,
    OperatorRun,
    PeerDep,
    RandomKey,
    ServicesDep,
)
from pubswap_server.http.plain_json import PlainJsonRoute
from pubswap_server.runs import members, runs
from pubswap_server.runs.auth import require_going, require_member, require_own, sha256

router = APIRouter(tags=["members"], route_class=PlainJsonRoute)


@router.post(paths.RUN_INVITES, status_code=201, summary="Make an invite")
async def create_invite(run: OperatorRun, body: CreateInvite) -> Invite:
    """Good once, and for a time, in place of an earlier one; it is shown in this answer only."""
    return await run.write(lambda session, row: members.invite(session, row, body))


@router.post(
    paths.ENROLL, status_code=201, summary="Use an invite", responses={401: {}, 410: {}, 429: {}}
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


@router.get(paths.RUN_MEMBERS, summary="Who takes part")
async def list_members(run: OperatorRun) -> MemberList:
    """With progress and bytes."""
    await run.services.heartbeats.flush()
    return MemberList(members=await run.read(lambda session, row: members.views(session, row.id)))


@router.delete(paths.RUN_MEMBER, status_code=204, summary="Revoke a member")
async def revoke_member(run: OperatorRun, member: Word) -> Response:
    """Its token is worthless at once and for good; rounds no longer wait for it."""
    await run.write(lambda session, row: members.revoke(session, row, member))
    return Response(status_code=204)


@router.post(paths.RUN_MEMBER_SUSPEND, status_code=204, summary="Suspend")
async def suspend_member(run: OperatorRun, member: Word) -> Response:
    """Refused with 403 `suspended` until reinstated; what it handed in before counts."""
    await run.write(lambda session, row: members.suspend(session, row, member))
    return Response(status_code=204)


@router.post(paths.RUN_MEMBER_REINSTATE, status_code=204, summary="Reinstate")
async def reinstate_member(run: OperatorRun, member: Word) -> Response:
    """A suspended member goes on, and rounds wait for it again."""
    await run.write(lambda session, row: members.suspend(session, row, member, False))
    return Response(status_code=204)


@router.post(paths.RUN_MEMBER_REISSUE, status_code=201, summary="Make another invite for a member")
async def reissue_member(run: OperatorRun, member: Word, body: Reissue) -> Invite:
    """For a token that was lost: enrolling with it replaces the token, which works until then."""
    seconds = body.expires_in_seconds
    return await run.write(lambda session, row: members.reissue(session, row, member, seconds))


@router.put(
    paths.RUN_MEMBER_CERTIFICATE,
    status_code=204,
    summary="Bind a token to another client certificate",
)
async def bind_certificate(run: OperatorRun, member: Word, body: BindCertificate) -> Response:
    """For a certificate that was renewed; before, enrolling has bound the first one."""
    await run.write(lambda session, row: members.bind(session, row, member, body.sha256))
    return Response(status_code=204)


@router.post(paths.HELLO, status_code=204, summary="Compare base models")
async def hello(run: Word, body: Hello, member: MemberDep, services: ServicesDep) -> Response:
    """409 `base_model_mismatch` unless config, tokenizer and weights are the run's.

    A member takes part from the first hello that is not refused to the first that is, or until the
    coordinator has another version of the run's verifier.
    """

    def work(session: Session) -> PubSwapError | None:
        refusal = runs.refusal_of(runs.find(session, run, member, lock=True), body)
        members.accept(session, member, refusal is None)
        return refusal

    if (refusal := await services.database.write(work)) is not None:
        raise refusal
    return Response(status_code=204)


@router.post(paths.AWAY, status_code=204, summary="Stay away by one's own policy")
async def say_away(run: Word, body: Away, member: MemberDep, services: ServicesDep) -> Response:
    """Nobody waits for the member, and the operator sees why, until its next hello."""
    require_member(member, Role.CLIENT)

    def work(session: Session) -> None:
        members.away(session, runs.find(session, run, member, lock=True), member, body)

    await services.database.write(work)
    return Response(status_code=204)


@router.post(paths.HEARTBEAT, status_code=204, summary="Tell progress")
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
