"""What a member sees of its run in a browser: the means, its own figures, what it approved.

It comes by a link of its own client, and by a cookie that no other page takes. So nothing else on
the dashboard has to know of members.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from sqlalchemy.orm import Session

from pubswap_protocol.command_line.keys import flat
from pubswap_protocol.messages import Role, RunState
from pubswap_protocol.terms import given
from pubswap_server.database.tables import MemberRow, RunRow
from pubswap_server.http.dependencies import RunAccess, ServicesDep
from pubswap_server.http.routes.runs import get_adapter
from pubswap_server.runs import history, links, members, runs
from pubswap_server.runs.activity import read_end
from pubswap_server.runs.auth import MemberPrincipal
from pubswap_server.web.meanings import meanings_of_chosen
from pubswap_server.web.points import by_round, by_step
from pubswap_server.web.rendering import HEADERS, PageRoute, page

router = APIRouter(route_class=PageRoute, include_in_schema=False)

COOKIE = "pubswap_member"

Values = dict[str, Any]


async def get_member(request: Request, services: ServicesDep) -> MemberPrincipal:
    """The member of the request's cookie; raises Unauthenticated or Suspended."""
    view = links.read_cookie(services.operator_sha256, request.cookies.get(COOKIE, ""))

    def work(session: Session) -> MemberPrincipal:
        row = links.member_of(session, view)
        return MemberPrincipal(row.id, row.run_id, row.name, Role(row.role))

    return await services.database.read(work)


Viewing = Annotated[MemberPrincipal, Depends(get_member)]


@router.get("/own/link")
async def follow_link(
    request: Request, services: ServicesDep, code: Annotated[str, Query(max_length=500)] = ""
) -> Response:
    """Exchange a link for a cookie, once."""
    cookie = await services.database.write(
        lambda session: links.use_link(session, services.operator_sha256, code)
    )
    reply = RedirectResponse("/own", 303, headers=HEADERS)
    reply.set_cookie(
        COOKIE,
        cookie,
        max_age=links.SESSION_SECONDS,
        path="/own",
        httponly=True,
        samesite="lax",  # a link may be opened from a mail or a chat; these pages change nothing
        secure=request.url.scheme == "https",
    )
    return reply


@router.get("/own")
async def show_own_run(member: Viewing, services: ServicesDep) -> Response:
    """A member's page of its run."""

    def work(session: Session, row: RunRow) -> Values:
        own = session.get_one(MemberRow, member.id)
        differing = flat(given(row.settings))
        return {
            "run": runs.view(session, row),
            "own": members.view_of(session, own),
            "end": read_end(session, row),
            "differing": differing,
            "meanings": meanings_of_chosen(differing),
            "over": row.state == RunState.FINISHED,
        }

    await services.heartbeats.flush()
    values = await RunAccess(member.run, member, services).read(work)
    return page("own.html", session=None, **values)


@router.get("/own/points")
async def show_own_points(member: Viewing, services: ServicesDep) -> Response:
    """The means by round, and this member's own steps; no other member's."""

    def work(session: Session, row: RunRow) -> list[Values]:
        own = by_step(session, row, [member.name] if member.role is Role.CLIENT else [])
        return [own, by_round(history.curves(session, row.id))]

    await services.heartbeats.flush()
    groups = await RunAccess(member.run, member, services).read(work)
    return JSONResponse([group for group in groups if group["charts"]], headers=HEADERS)


@router.get("/own/adapter")
async def download_own_adapter(member: Viewing, services: ServicesDep) -> Response:
    """The last round's adapter, as a file download."""
    reply = await get_adapter(RunAccess(member.run, member, services), "final")
    reply.headers["Content-Disposition"] = 'attachment; filename="adapter.safetensors"'
    return reply
