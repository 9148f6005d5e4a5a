"""Sign-in and the operator's forms; each action is first confirmed on its own page."""

import secrets
from functools import partial
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy.orm import Session

from pubswap_protocol.bounds import Word
from pubswap_protocol.errors import Forbidden, PubSwapError, Unauthenticated
from pubswap_protocol.messages import RunState, SetKind
from pubswap_server.database.tables import RunRow
from pubswap_server.http.dependencies import PeerDep, ServicesDep
from pubswap_server.rate_limits import Use
from pubswap_server.runs import runs
from pubswap_server.runs.auth import authenticate, is_viewer, require_operator, sha256
from pubswap_server.web import actions, creating
from pubswap_server.web.access import (
    COOKIE,
    SECONDS,
    FormDep,
    OperatorSession,
    OwnForm,
    SessionDep,
    TypedForm,
    WebRun,
    is_own,
    new_cookie,
    sign_out,
)
from pubswap_server.web.rendering import PageRoute, page

router = APIRouter(route_class=PageRoute, include_in_schema=False)

LOCAL = ("localhost", "127.0.0.1", "::1")


@router.get("/sign-in")
async def ask_token(to: Annotated[str, Query(max_length=2000)] = "/") -> Response:
    """The sign-in page."""
    return page("sign_in.html", session=None, to=to, problem=None)


@router.post("/sign-in")
async def sign_in(
    request: Request, services: ServicesDep, peer: PeerDep, form: FormDep
) -> Response:
    """With the operator's token or a viewer's; attempts are limited as in the JSON API."""
    token, to = form.get("token", "").strip(), form.get("to", "/")
    try:
        if request.url.scheme != "https" and request.url.hostname not in LOCAL:
            raise Forbidden(
                "This page uses plain HTTP, so others can read your token. Use https, "
                "or a tunnel: ssh -L 8470:127.0.0.1:8470 HOST, then http://127.0.0.1:8470."
            )
        await services.limits.check_peer(peer, {sha256(token): Use.DASHBOARD})
        viewer = await services.database.read(
            lambda session: _viewer(session, token, services.operator_sha256)
        )
    except (Unauthenticated, Forbidden) as error:
        services.limits.failed(peer, sha256(token))
        return page("sign_in.html", error.status, session=None, to=to, problem=error.problem())
    # Only to our own pages: `//elsewhere` and `/\elsewhere` are other hosts to a browser.
    reply = RedirectResponse(to if to.startswith("/runs/") else "/", 303)
    reply.set_cookie(
        COOKIE,
        new_cookie(services.operator_sha256, viewer),
        max_age=SECONDS,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return reply


def _viewer(session: Session, token: str, operator_sha256: str) -> str:
    """The hash of a viewer's token, "" for the operator's.

    Raises Unauthenticated, or Forbidden for a member's.
    """
    if is_viewer(session, sha256(token)):
        return sha256(token)
    require_operator(authenticate(session, token, operator_sha256))
    return ""


@router.post("/sign-out")
async def end_session(_: OwnForm, session: SessionDep, services: ServicesDep) -> Response:
    """End the session, also where its cookie was copied to."""
    await services.database.write(lambda database: sign_out(database, session))
    reply = RedirectResponse("/sign-in", 303)
    reply.delete_cookie(COOKIE)
    return reply


@router.get("/runs/{run}/acts/{act}")
async def confirm(run: WebRun, session: OperatorSession, act: Word, member: Word = "") -> Response:
    """Ask for confirmation of an action, with its consequence."""
    chosen = actions.action_named(act)
    view = await run.read(runs.view)
    consequence = chosen.consequence.replace("{member}", member or "The member")
    return page(
        "confirm.html",
        session=session,
        run=view,
        act=act,
        label=chosen.label,
        consequence=consequence.replace("{round}", str(view.round)),
        member=member,
    )


@router.post("/runs/{run}/acts/{act}")
async def do(run: WebRun, _: OperatorSession, form: OwnForm, act: Word) -> Response:
    """Carry out the action and return to the run's page."""
    chosen = actions.action_named(act)

    def work(session: Session, row: RunRow) -> str:
        chosen.work(session, row, form)
        return row.id

    return RedirectResponse(f"/runs/{await run.write(work)}", 303)


@router.post("/runs/{run}/invites")
async def invite(
    run: WebRun, form: OwnForm, session: OperatorSession, request: Request
) -> Response:
    """Create an invite; its code is shown once, with the command to enrol."""
    code = await run.write(lambda database, row: actions.invited(database, row, form))
    view = await run.read(runs.view)
    url = f"{request.url.scheme}://{request.url.netloc}"
    return page(
        "invited.html",
        session=session,
        run=view,
        code=code,
        url=url,
        local=request.url.hostname in LOCAL,
        member=form["member"],
    )


@router.get("/runs/{run}/new")
async def ask_run_file(run: WebRun, session: OperatorSession) -> Response:
    """The run as a run file, to edit for a new run."""
    view, text = await run.read(
        lambda database, row: (runs.view(database, row), creating.run_file(row))
    )
    return page("create.html", session=session, run=view, text=text, new=None, problem=None)


@router.post("/runs/{run}/new")
async def create(form: TypedForm, run: WebRun, session: OperatorSession) -> Response:
    """Check the file and show what it changes; with `sure`, create the run and open it.

    The typed text is shown again whatever happens, also if the session has ended.
    """
    text = form.get("text", "")
    view, row, sets = await run.read(
        lambda database, row: (runs.view(database, row), row, runs.sets_of(database, row))
    )
    digests = {kind: stored.digest for kind, stored in sets.items()}
    new, problem, services = None, None, run.services
    try:
        if not is_own(session, form):
            raise Forbidden("This form is from an earlier session or another site; check it again.")
        new = await to_thread.run_sync(creating.read_new_run, row, text)
        settings, layout = new.request.settings, new.request.model.layout
        if SetKind.PUBLIC in sets:
            runs.check_public(settings, sets[SetKind.PUBLIC].problems)
        await to_thread.run_sync(services.check_judged, settings.verifier, digests)
        if row.tokenizer is not None:
            await to_thread.run_sync(services.check_lengths, settings, row.tokenizer, digests)
        if form.get("sure") and row.state == RunState.CREATED:
            await run.write(partial(runs.revise, request=new.request))
            return RedirectResponse(f"/runs/{row.id}", 303)
        if form.get("sure"):
            initial = await to_thread.run_sync(services.initial_adapter, layout, settings)
            open_it = partial(
                creating.create_open, new=new, initial=initial, key=form.get("key") or None
            )
            created = await run.write(open_it)
            return RedirectResponse(f"/runs/{created}", 303)
        name = new.request.name
        if row.state != RunState.CREATED or name != row.name:
            await run.read(lambda database, row: runs.check_name(database, name))
    except PubSwapError as error:
        new, problem = None, error.problem()
    status = problem.status if problem else 200
    return page(
        "create.html",
        status,
        session=session,
        run=view,
        text=text,
        new=new,
        problem=problem,
        key=secrets.token_urlsafe(16),
    )
