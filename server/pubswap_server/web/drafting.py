"""Create a run from nothing in the browser: a model's card, then the files, settings, opening.

Until it is open, the run is a draft that no organisation sees. `static/upload.js` sends each
file as it is, so the JSON API's routes take it; their refusals are JSON as there.
"""

import hmac
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import ValidationError

from pubswap_protocol.bounds import Word
from pubswap_protocol.errors import Forbidden, Invalid, TooLarge, Unauthenticated, first_fault
from pubswap_protocol.messages import CreateRun, SetKind
from pubswap_server.http.dependencies import RunAccess, ServicesDep
from pubswap_server.http.routes.runs import create_run, open_run, put_set, put_tokenizer
from pubswap_server.runs.auth import Operator
from pubswap_server.web.access import OperatorSession, OwnForm, WebRun, WebSession, get_session
from pubswap_server.web.rendering import HEADERS, PageRoute, SignedOut, page

router = APIRouter(route_class=PageRoute, include_in_schema=False)
uploads = APIRouter(include_in_schema=False)

MAX_CARD_BYTES = 32 << 20


async def get_sender(request: Request, services: ServicesDep) -> WebSession:
    """The operator's session, whose page sent this file; raises Unauthenticated or Forbidden."""
    try:
        session = await get_session(request, services)
    except SignedOut:
        raise Unauthenticated("Your session has ended: sign in again.") from None
    token = request.headers.get("X-Form-Token", "")
    if session.viewer or not hmac.compare_digest(session.form_token.encode(), token.encode()):
        raise Forbidden("Only a page of the operator's own session may send files; reload it.")
    return session


async def get_draft(run: Word, _: "Sender", services: ServicesDep) -> RunAccess[Operator]:
    return RunAccess(run, Operator(), services)


Sender = Annotated[WebSession, Depends(get_sender)]
Draft = Annotated[RunAccess[Operator], Depends(get_draft)]


@router.get("/new")
async def ask_card(session: OperatorSession) -> Response:
    """What a new run needs first."""
    return page("new.html", session=session)


@uploads.put("/new")
async def take_card(request: Request, _: Sender, services: ServicesDep) -> Response:
    """Create a run from the card that `pubswap model card` writes."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_CARD_BYTES:
            raise TooLarge(f"A model's card has at most {MAX_CARD_BYTES >> 20} MiB.")
    try:
        card = CreateRun.model_validate_json(bytes(body))
    except ValidationError as error:
        raise Invalid(
            f"This is no card of a model ({first_fault(error)}). Write one with pubswap model card."
        ) from None
    view = await create_run(card, Operator(), services)
    return _to(view.id)


@uploads.put("/runs/{run}/files/tokenizer")
async def take_tokenizer(run: Draft, request: Request) -> Response:
    """The base model's tokenizer.json."""
    await put_tokenizer(run, request)
    return _to(run.name)


@uploads.put("/runs/{run}/files/{kind}")
async def take_set(run: Draft, kind: SetKind, request: Request) -> Response:
    """The public or the test set; the refusal names a line."""
    await put_set(run, kind, request)
    return _to(run.name)


def _to(run: str) -> Response:
    return JSONResponse({"to": f"/runs/{run}"}, headers=HEADERS)


@router.post("/runs/{run}/open")
async def open_draft(run: WebRun, _: OperatorSession, form: OwnForm) -> Response:
    """Open the run for members; raises what is missing or does not fit."""
    view = await open_run(run)
    return RedirectResponse(f"/runs/{view.id}", 303)
