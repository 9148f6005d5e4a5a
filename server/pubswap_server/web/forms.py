"""Sign-in and the operator's forms: each act is confirmed on a page of its own, then done."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy.orm import Session

from pubswap_protocol.bounds import Word
from pubswap_protocol.errors import Forbidden, Unauthenticated
from pubswap_server.database.tables import RunRow
from pubswap_server.http.dependencies import PeerDep, ServicesDep
from pubswap_server.runs import runs
from pubswap_server.runs.auth import authenticate, require_operator, sha256
from pubswap_server.web import acts
from pubswap_server.web.access import FormDep, OwnForm, SessionDep, WebRun
from pubswap_server.web.rendering import PageRoute, page
from pubswap_server.web.sessions import COOKIE, SECONDS, Sessions

router = APIRouter(route_class=PageRoute, include_in_schema=False)

LOCAL = ("localhost", "127.0.0.1", "::1")


@router.get("/sign-in")
async def ask_token(to: Annotated[str, Query(max_length=300)] = "/") -> Response:
    """The sign-in."""
    return page("sign_in.html", session=None, to=to, problem=None)


@router.post("/sign-in")
async def sign_in(
    request: Request, services: ServicesDep, peer: PeerDep, form: FormDep
) -> Response:
    """With the operator's token; attempts are limited like those of the JSON interface."""
    token, to = form.get("token", "").strip(), form.get("to", "/")
    try:
        _require_private(request)
        services.limits.check_peer(peer, sha256(token))
        principal = await services.database.read(
            lambda session: authenticate(session, token, services.operator_sha256, None)
        )
        require_operator(principal)
    except (Unauthenticated, Forbidden) as error:
        services.limits.failed(peer)
        return page("sign_in.html", error.status, session=None, to=to, problem=error.problem())
    services.limits.passed(sha256(token))
    # To a page of ours alone: `//elsewhere` and `/\elsewhere` are other hosts to a browser.
    reply = RedirectResponse(to if to.startswith("/runs/") else "/", 303)
    reply.set_cookie(
        COOKIE,
        Sessions(services.operator_sha256).begin(),
        max_age=SECONDS,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return reply


def _require_private(request: Request) -> None:
    """Raises Forbidden where the token could be read on its way."""
    if request.url.scheme != "https" and request.url.hostname not in LOCAL:
        raise Forbidden(
            "This page came over plain HTTP, on which others can read your token. Use https, or "
            "a tunnel: ssh -L 8470:127.0.0.1:8470 HOST, then http://127.0.0.1:8470."
        )


@router.post("/sign-out")
async def sign_out(_: OwnForm) -> Response:
    """Forget the session in this browser."""
    reply = RedirectResponse("/sign-in", 303)
    reply.delete_cookie(COOKIE)
    return reply


@router.get("/runs/{run}/acts/{act}")
async def confirm(run: WebRun, session: SessionDep, act: Word, member: Word = "") -> Response:
    """What an act leads to, before it is done."""
    chosen = acts.act_named(act)
    view = await run.read(lambda database, row: runs.view(database, row))
    return page(
        "confirm.html",
        session=session,
        run=view,
        act=act,
        label=chosen.label,
        consequence=chosen.consequence.replace("{member}", member or "The member"),
        member=member,
    )


@router.post("/runs/{run}/acts/{act}")
async def do(run: WebRun, form: OwnForm, act: Word) -> Response:
    """Do it, and go back to the run."""
    chosen = acts.act_named(act)

    def work(session: Session, row: RunRow) -> str:
        chosen.work(session, row, form)
        return row.id

    return RedirectResponse(f"/runs/{await run.write(work)}", 303)


@router.post("/runs/{run}/invites")
async def invite(run: WebRun, form: OwnForm, session: SessionDep, request: Request) -> Response:
    """A new invite; its code is shown once, with the command that takes it."""
    code = await run.write(lambda database, row: acts.invited(database, row, form))
    view = await run.read(lambda database, row: runs.view(database, row))
    url = f"{request.url.scheme}://{request.url.netloc}"
    return page(
        "invited.html", session=session, run=view, code=code, url=url, member=form["member"]
    )
