"""Route dependencies: services, principals, runs, and bounded parameters.

All are coroutines, because FastAPI would run a plain function in the thread pool, where it would
wait behind work on blobs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar, cast

from fastapi import Depends, Header, Query, Request
from fastapi import Path as PathParameter
from fastapi.security import HTTPBearer
from sqlalchemy.orm import Session
from structlog.contextvars import bind_contextvars

from pubswap_protocol.bounds import MAX_NUMBER, Word
from pubswap_protocol.errors import Suspended, Unauthenticated
from pubswap_protocol.messages import Role
from pubswap_protocol.paths import IDEMPOTENCY_HEADER
from pubswap_server.database.tables import RunRow
from pubswap_server.http.middleware import is_heartbeat
from pubswap_server.rate_limits import Use
from pubswap_server.runs import runs
from pubswap_server.runs.auth import (
    MemberPrincipal,
    Operator,
    Principal,
    authenticate,
    bearer,
    require_accepted,
    require_going,
    require_member,
    require_operator,
    sha256,
)
from pubswap_server.services import Services

T = TypeVar("T")
P_co = TypeVar("P_co", bound=Principal, covariant=True)

scheme = HTTPBearer(auto_error=False, description="The operator's token, or a member's.")


async def get_services(request: Request) -> Services:
    return cast(Services, request.app.state.services)


ServicesDep = Annotated[Services, Depends(get_services)]


async def get_peer(request: Request) -> str:
    """The client's address, as reported by a trusted proxy."""
    return request.client.host if request.client else "unknown"


PeerDep = Annotated[str, Depends(get_peer)]

Direct = Annotated[
    bool, Query(description="Bytes may go directly to or from the coordinator's bucket.")
]


async def get_principal(
    services: ServicesDep, request: Request, peer: PeerDep, _: Annotated[object, Depends(scheme)]
) -> Principal:
    """The request's principal; raises Unauthenticated, Suspended, or TooManyRequests."""
    try:
        token = bearer(request.headers.get("Authorization"))
    except Unauthenticated:
        services.limits.failed(peer)
        raise
    await services.limits.check_peer(peer, {sha256(token): Use.API})

    def identify(session: Session) -> Principal:
        return authenticate(session, token, services.operator_sha256)

    try:
        principal = await services.database.read(
            identify, single=True, urgent=is_heartbeat(request.scope)
        )
    except (Unauthenticated, Suspended):
        services.limits.failed(peer, sha256(token))
        raise
    if isinstance(principal, MemberPrincipal):
        bind_contextvars(run=principal.run, member=principal.name)
        services.limits.check_member(principal.id)
        services.heartbeats.alive(principal)
    else:
        bind_contextvars(member="operator")
    return principal


PrincipalDep = Annotated[Principal, Depends(get_principal)]


async def get_operator(principal: PrincipalDep) -> Operator:
    """The operator; raises Forbidden for members."""
    require_operator(principal)
    return Operator()


async def get_member(principal: PrincipalDep) -> MemberPrincipal:
    return require_member(principal)


OperatorDep = Annotated[Operator, Depends(get_operator)]
MemberDep = Annotated[MemberPrincipal, Depends(get_member)]


@dataclass(frozen=True)
class RunAccess(Generic[P_co]):
    """A run's row, for a principal that may see it."""

    name: str
    principal: P_co
    services: Services

    async def read(self, work: Callable[[Session, RunRow], T]) -> T:
        """The result of `work`, which must only read."""
        return await self.services.database.read(
            lambda session: work(session, runs.find(session, self.name, self.principal))
        )

    async def read_for_all(self, work: Callable[[Session, RunRow], T]) -> T:
        """Like `read`, for a result that many members share; this member is not checked again.

        Raises UnknownRun.
        """
        return await self.services.database.read(
            lambda session: work(session, runs.by_id(session, self.name))
        )

    async def write(self, work: Callable[[Session, RunRow], T]) -> T:
        """The result of `work` on the locked row, after the commit."""
        return await self.services.database.write(
            lambda session: work(session, runs.find(session, self.name, self.principal, lock=True))
        )


async def get_operator_run(
    run: Word, operator: OperatorDep, services: ServicesDep
) -> RunAccess[Operator]:
    """Any run; raises Forbidden for members."""
    return RunAccess(run, operator, services)


async def get_client_run(
    run: Word, principal: PrincipalDep, services: ServicesDep
) -> RunAccess[MemberPrincipal]:
    """A client's run; raises Forbidden, RunCancelled or HelloNeeded."""
    member = require_member(principal, Role.CLIENT)
    require_going(member.cancelled)
    require_accepted(member)
    return RunAccess(run, member, services)


async def get_evaluator_run(
    run: Word, principal: PrincipalDep, services: ServicesDep
) -> RunAccess[MemberPrincipal]:
    """An evaluator's run; raises Forbidden or HelloNeeded."""
    member = require_member(principal, Role.EVALUATOR)
    require_accepted(member)
    return RunAccess(run, member, services)


async def get_principal_run(
    run: Word, principal: PrincipalDep, services: ServicesDep
) -> RunAccess[Principal]:
    """Any run for the operator; only their own for members."""
    return RunAccess(run, principal, services)


OperatorRun = Annotated[RunAccess[Operator], Depends(get_operator_run)]
ClientRun = Annotated[RunAccess[MemberPrincipal], Depends(get_client_run)]
EvaluatorRun = Annotated[RunAccess[MemberPrincipal], Depends(get_evaluator_run)]
PrincipalRun = Annotated[RunAccess[Principal], Depends(get_principal_run)]
Wait = Annotated[
    float,
    Query(
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="Seconds to wait; the coordinator may wait less.",
    ),
]


Number = Annotated[
    int,
    PathParameter(
        ge=0, le=MAX_NUMBER, description="Rounds count from 1; round 0 has the initial adapter."
    ),
]
PublicStepNumber = Annotated[
    int,
    PathParameter(
        ge=1,
        le=MAX_NUMBER,
        description="The public steps of a round count from 1 to local_steps // method.period: "
        "number n is local step n * method.period.",
    ),
]


Rollbacks = Annotated[
    int | None,
    Query(
        ge=0,
        le=MAX_NUMBER,
        description="The task's `rollbacks`: 409 `round_closed` after a later rollback.",
    ),
]


RandomKey = Annotated[
    str | None,
    Header(
        alias=IDEMPOTENCY_HEADER,
        min_length=22,
        max_length=200,
        description="Optional, random and secret. If an answer is lost, send the request again "
        "with the same key to get the same answer.",
    ),
]
