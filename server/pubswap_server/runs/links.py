"""Links by which a member's own client lets a browser see its run.

A link is signed with the operator token's hash, as the dashboard's sessions are, so every replica
can check it. It holds for minutes and once.
"""

from dataclasses import asdict, dataclass
from datetime import timedelta

from itsdangerous import BadData, URLSafeTimedSerializer
from sqlalchemy import delete
from sqlalchemy.orm import Session

from pubswap_protocol.errors import Unauthenticated
from pubswap_server.clock import now
from pubswap_server.database.tables import MemberRow, SignedOutRow
from pubswap_server.runs.auth import MemberPrincipal, new_secret, require_good, sha256

LINK_SECONDS = 600
SESSION_SECONDS = 12 * 3600

_NOT_VALID = "This link has expired or was used. Get another with `pubswap client link`."


@dataclass(frozen=True, slots=True)
class OwnView:
    """A browser's view of a member's run, in a link or in a cookie."""

    member: int
    nonce: str


def _signer(operator_sha256: str, use: str) -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(operator_sha256, salt=f"pubswap member's {use}")


def new_link(operator_sha256: str, member: MemberPrincipal) -> str:
    """The code of a new link for a member."""
    view = OwnView(member.id, new_secret())
    return str(_signer(operator_sha256, "link").dumps(asdict(view)))


def use_link(session: Session, operator_sha256: str, code: str) -> str:
    """A cookie for a link's first use; raises Unauthenticated."""
    view = _read(operator_sha256, "link", code, LINK_SECONDS)
    member_of(session, view)
    used = sha256(view.nonce)
    if session.get(SignedOutRow, used) is not None:
        raise Unauthenticated(_NOT_VALID)
    session.execute(delete(SignedOutRow).where(SignedOutRow.forget_at < now()))
    session.add(SignedOutRow(session_sha256=used, forget_at=now() + timedelta(days=1)))
    return str(_signer(operator_sha256, "cookie").dumps(asdict(view)))


def read_cookie(operator_sha256: str, cookie: str) -> OwnView:
    """The view of a cookie; raises Unauthenticated."""
    return _read(operator_sha256, "cookie", cookie, SESSION_SECONDS)


def _read(operator_sha256: str, use: str, text: str, seconds: int) -> OwnView:
    try:
        return OwnView(**_signer(operator_sha256, use).loads(text, max_age=seconds))
    except (BadData, TypeError):
        raise Unauthenticated(_NOT_VALID) from None


def member_of(session: Session, view: OwnView) -> MemberRow:
    """The member of a view; raises Unauthenticated if it is gone or revoked, or Suspended."""
    row = session.get(MemberRow, view.member)
    if row is None:
        raise Unauthenticated(_NOT_VALID)
    require_good(row.active, row.suspended)
    return row
