"""Invites, enrolment, tokens, and who takes part."""

from fastapi import APIRouter, Response
from sqlalchemy.orm import Session

from pubswap_protocol import paths
from pubswap_protocol.bounds import Word
from pubswap_protocol.errors import InviteExpired, InviteUsed, PubSwapError, Unauthenticated
from pubswap_protocol.messages import (
    Away,
    CreateInvite,
    Enroll,
    Hello,
    Invite,
    MemberList,
    Membership,
    OwnLink,
    Progress,
    Reissue,
    Role,
)
from pubswap_server.http.dependencies import (
    MemberDep,
    OperatorRun,
    PeerDep,
    RandomKey,
    ServicesDep,
)
from pubswap_server.http.plain_json import PlainJsonRoute
from pubswap_server.rate_limits import Use
from pubswap_server.runs import links, members, runs
from pubswap_server.runs.auth import (
    issued_token,
    require_going,
    require_member,
    require_own,
    sha256,
)

router = APIRouter(tags=["members"], route_class=PlainJsonRoute)


@router.post(paths.RUN_INVITES, status_code=201, summary="Create an invite")
async def create_invite(run: OperatorRun, body: CreateInvite) -> Invite:
    """Valid once and for a limited time; replaces an earlier one. Only this answer shows it."""
    return await run.write(lambda session, row: members.invite(session, row, body))


@router.post(
    paths.ENROLL,
    status_code=201,
    summary="Enrol with an invite",
    responses={401: {}, 410: {}, 429: {}},
)
async def enroll(
    body: Enroll,
    services: ServicesDep,
    peer: PeerDep,
    idempotency_key: RandomKey = None,
) -> Membership:
    """Needs no token. Only this answer shows the new token; only its SHA-256 is stored."""
    secrets = {sha256(body.invite): Use.ENROLMENT}
    if idempotency_key is not None:  # the answer may have been lost: then its token is good
        secrets[sha256(issued_token(body.invite, idempotency_key))] = Use.API
    await services.limits.check_peer(peer, secrets)
    try:
        return await services.database.write(
            lambda session: members.enroll(session, body.invite, idempotency_key)
        )
    except (Unauthenticated, InviteUsed, InviteExpired):
        services.limits.failed(peer, sha256(body.invite))
        raise


@router.get(paths.RUN_MEMBERS, summary="List members")
async def list_members(run: OperatorRun) -> MemberList:
    """With their progress and traffic."""
    await run.services.heartbeats.flush()
    return MemberList(members=await run.read(lambda session, row: members.views(session, row.id)))


@router.delete(paths.RUN_MEMBER, status_code=204, summary="Revoke a member")
async def revoke_member(run: OperatorRun, member: Word) -> Response:
    """Invalidates its token at once and for good; rounds no longer wait for it."""
    await run.write(lambda session, row: members.revoke(session, row, member))
    return Response(status_code=204)


@router.post(paths.RUN_MEMBER_SUSPEND, status_code=204, summary="Suspend a member")
async def suspend_member(run: OperatorRun, member: Word) -> Response:
    """It gets 403 `suspended` until reinstated; its earlier contributions count."""
    await run.write(lambda session, row: members.suspend(session, row, member))
    return Response(status_code=204)


@router.post(paths.RUN_MEMBER_REINSTATE, status_code=204, summary="Reinstate a member")
async def reinstate_member(run: OperatorRun, member: Word) -> Response:
    """A suspended member continues, and rounds wait for it again."""
    await run.write(lambda session, row: members.suspend(session, row, member, False))
    return Response(status_code=204)


@router.post(
    paths.RUN_MEMBER_REISSUE, status_code=201, summary="Create another invite for a member"
)
async def reissue_member(run: OperatorRun, member: Word, body: Reissue) -> Invite:
    """For a lost token: enrolling with the invite replaces the token, which works until then."""
    seconds = body.expires_in_seconds
    return await run.write(lambda session, row: members.reissue(session, row, member, seconds))


@router.post(paths.HELLO, status_code=204, summary="Report base model and verifier")
async def hello(run: Word, body: Hello, member: MemberDep, services: ServicesDep) -> Response:
    """409 `base_model_mismatch` unless config, tokenizer and weights are the run's.

    A member takes part from an accepted hello until a refused one, or until the coordinator has
    another version of the run's verifier.
    """

    def work(session: Session) -> PubSwapError | None:
        refusal = runs.refusal_of(runs.find(session, run, member, lock=True), body)
        members.accept(session, member, refusal is None)
        return refusal

    if (refusal := await services.database.write(work)) is not None:
        raise refusal
    return Response(status_code=204)


@router.post(paths.AWAY, status_code=204, summary="Report being away")
async def say_away(run: Word, body: Away, member: MemberDep, services: ServicesDep) -> Response:
    """Rounds do not wait for the member until its next hello; the operator sees the reason."""
    require_member(member, Role.CLIENT)

    def work(session: Session) -> None:
        # Without a lock on the run, because a member that sits out a round repeats this. Only a
        # line in the log needs the lock.
        members.away(session, runs.find(session, run, member), member, body)

    await services.database.write(work)
    # Each may lock the run and wake everybody, so a member may not send as many as other requests.
    services.limits.members.charge(member.id, services.limits.members.rate.per_second)
    return Response(status_code=204)


@router.post(paths.LINK, status_code=201, summary="Create a link to this member's own page")
async def create_link(run: Word, member: MemberDep, services: ServicesDep) -> OwnLink:
    """A browser that follows it within minutes, once, sees the run's means and this member."""
    require_own(run, member)
    code = links.new_link(services.operator_sha256, member)
    return OwnLink(path=f"/own/link?code={code}", seconds=links.LINK_SECONDS)


@router.post(paths.HEARTBEAT, status_code=204, summary="Send a heartbeat")
async def heartbeat(
    run: Word, body: Progress, member: MemberDep, services: ServicesDep
) -> Response:
    """Numbers only, as a hint: kept in memory, and written to disk about a second later.

    409 `run_cancelled` once the operator has cancelled the run: stop training.
    """
    require_own(run, member)
    require_going(member.cancelled)
    services.heartbeats.seen(member, body)
    return Response(status_code=204)
