"""Sessions and forms of the dashboard.

A session is a signed cookie, valid for half a day, with a CSRF token in each form. The cookie is
signed with the operator token's hash, so every replica can check it, and a new operator token ends
all sessions. The database holds only the sessions that were signed out, so that a copy of a cookie
ends with them.
"""

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from itsdangerous import BadData, URLSafeTimedSerializer
from sqlalchemy import delete
from sqlalchemy.orm import Session

from pubswap_protocol.bounds import Word
from pubswap_protocol.errors import Forbidden, Invalid, TooLarge
from pubswap_server.clock import now
from pubswap_server.database.tables import SignedOutRow
from pubswap_server.http.dependencies import RunAccess, ServicesDep
from pubswap_server.runs.auth import Operator, is_viewer, sha256
from pubswap_server.web.rendering import SignedOut

COOKIE = "pubswap_session"
SECONDS = 12 * 3600
FORGET_SECONDS = 2 * SECONDS  # twice, because a clock may be set back
MAX_FORM_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class WebSession:
    """A signed-in person; each form that changes something must send `form_token` back."""

    form_token: str
    viewer: str = ""  # the hash of a viewer's token; empty for the operator


def _signer(operator_sha256: str) -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(operator_sha256, salt="pubswap dashboard")


def new_cookie(operator_sha256: str, viewer: str = "") -> str:
    session = WebSession(secrets.token_urlsafe(16), viewer)
    return str(_signer(operator_sha256).dumps(asdict(session)))


def session_of(operator_sha256: str, cookie: str) -> WebSession:
    """The session of a cookie; raises SignedOut if it is forged or expired."""
    try:
        return WebSession(**_signer(operator_sha256).loads(cookie, max_age=SECONDS))
    except (BadData, TypeError):
        raise SignedOut from None


def sign_out(database: Session, session: WebSession) -> None:
    """End a session in every browser and on every replica, and forget those that have expired."""
    database.execute(delete(SignedOutRow).where(SignedOutRow.forget_at < now()))
    forget_at = now() + timedelta(seconds=FORGET_SECONDS)
    database.merge(SignedOutRow(session_sha256=sha256(session.form_token), forget_at=forget_at))


def _goes_on(database: Session, session: WebSession) -> bool:
    if database.get(SignedOutRow, sha256(session.form_token)) is not None:
        return False
    return not session.viewer or is_viewer(database, session.viewer)


async def get_session(request: Request, services: ServicesDep) -> WebSession:
    """The session of the request's cookie.

    Raises SignedOut, also for a removed viewer and for a copy of a cookie that was signed out.
    """
    session = session_of(services.operator_sha256, request.cookies.get(COOKIE, ""))
    if not await services.database.read(lambda database: _goes_on(database, session)):
        raise SignedOut
    return session


SessionDep = Annotated[WebSession, Depends(get_session)]


async def get_operator_session(session: SessionDep) -> WebSession:
    """The operator's session; raises Forbidden for a viewer's."""
    if session.viewer:
        raise Forbidden("This is for the operator alone; sign in with the operator's token.")
    return session


OperatorSession = Annotated[WebSession, Depends(get_operator_session)]


async def get_form(request: Request) -> Mapping[str, str]:
    """A form's fields; raises TooLarge, or Invalid for a NUL, because PostgreSQL rejects it."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_FORM_BYTES:
            raise TooLarge(f"A form has at most {MAX_FORM_BYTES} bytes.")
    if b"\0" in body or b"%00" in body:
        raise Invalid("The form contains a NUL character.")
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


FormDep = Annotated[Mapping[str, str], Depends(get_form)]


def is_own(session: WebSession, form: Mapping[str, str]) -> bool:
    """Whether a form belongs to this session, not to an earlier one or another site."""
    return hmac.compare_digest(session.form_token.encode(), form.get("form_token", "").encode())


async def get_own_form(session: SessionDep, form: FormDep) -> Mapping[str, str]:
    """A form of this session; raises Forbidden."""
    if not is_own(session, form):
        raise Forbidden("This form is not from your session; go back, reload the page, try again.")
    return form


async def get_typed(request: Request, services: ServicesDep, form: FormDep) -> Mapping[str, str]:
    """A form with a long text; raises SignedOut with the text, so that it is not lost."""
    try:
        await get_session(request, services)
    except SignedOut:
        raise SignedOut(form.get("text", "")) from None
    return form


TypedForm = Annotated[Mapping[str, str], Depends(get_typed)]
OwnForm = Annotated[Mapping[str, str], Depends(get_own_form)]


async def get_run(run: Word, session: SessionDep, services: ServicesDep) -> RunAccess[Operator]:
    return RunAccess(run, Operator(), services)


WebRun = Annotated[RunAccess[Operator], Depends(get_run)]
