"""Authentication of the operator and of members. Only SHA-256s of tokens are stored."""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Executable, Row, bindparam, select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import (
    Forbidden,
    HelloNeeded,
    RunCancelled,
    Suspended,
    Unauthenticated,
    UnknownRun,
)
from pubswap_protocol.messages import Role, RunState
from pubswap_server.clock import now
from pubswap_server.database.tables import InviteRow, MemberRow, RunRow, ViewerRow
from pubswap_server.rate_limits import Use


@dataclass(frozen=True)
class Operator:
    """The holder of the operator token."""


@dataclass(frozen=True)
class MemberPrincipal:
    id: int
    run: str
    name: str
    role: Role
    cancelled: bool = False  # whether the run was
    accepted: bool = False  # whether its last hello was


Principal = Operator | MemberPrincipal

# Executed with every request; building a statement takes longer than executing it.
_STANDING = select(MemberRow.active, MemberRow.suspended).where(MemberRow.id == bindparam("member"))
_OF_TOKEN = (
    select(MemberRow.id, MemberRow.run_id, MemberRow.name, MemberRow.role, MemberRow.accepted)
    .add_columns(MemberRow.active, MemberRow.suspended, RunRow.state)
    .join(RunRow, RunRow.id == MemberRow.run_id)
    .where(MemberRow.token_sha256 == bindparam("token"))
)

_NOT_VALID = "This token is not valid here; it may have been revoked, or its run deleted."


def new_secret() -> str:
    """A token or invite: 256 random bits."""
    return secrets.token_urlsafe(32)


def issued_token(secret: str, key: str | None) -> str:
    """The token issued for a secret; with an idempotency key, always the same one.

    A request whose response was lost can thus be sent again, although only the token's SHA-256 is
    stored. Without the key, the secret is worth nothing once it has been used.
    """
    if key is None:
        return new_secret()
    mixed = hmac.digest(secret.encode(), key.encode(), "sha256")
    return base64.urlsafe_b64encode(mixed).decode().rstrip("=")


def sha256(secret: str) -> str:
    """The stored form of a secret. A plain hash is enough for 256 random bits."""
    return hashlib.sha256(secret.encode()).hexdigest()


def bearer(header: str | None) -> str:
    """The token of an Authorization header; raises Unauthenticated."""
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("Send the header `Authorization: Bearer TOKEN`.")
    return token.strip()


def authenticate(session: Session, token: str, operator_sha256: str) -> Principal:
    """The holder of a token.

    Raises Unauthenticated, always with the same message, or Suspended.
    """
    digest = sha256(token)
    if hmac.compare_digest(digest, operator_sha256):
        return Operator()
    row = _good(session, _OF_TOKEN, {"token": digest})
    cancelled = row.state == RunState.CANCELLED
    return MemberPrincipal(row.id, row.run_id, row.name, Role(row.role), cancelled, row.accepted)


def good_secrets(session: Session, operator_sha256: str) -> dict[str, Use]:
    """The hashes of all tokens and invites that would not be refused now."""
    takes_part = MemberRow.active, MemberRow.suspended.is_(False)
    unused = InviteRow.used_at.is_(None), InviteRow.expires_at > now()
    uses = {
        Use.API: select(MemberRow.token_sha256).where(*takes_part),
        Use.DASHBOARD: select(ViewerRow.token_sha256),
        Use.ENROLMENT: select(InviteRow.code_sha256).where(*unused),
    }
    good = {secret: use for use, query in uses.items() for secret in session.scalars(query)}
    return good | {operator_sha256: Use.API | Use.DASHBOARD}


def is_viewer(session: Session, token_sha256: str) -> bool:
    """Whether a token with this hash gives access to the dashboard."""
    query = select(ViewerRow.name).where(ViewerRow.token_sha256 == token_sha256)
    return session.scalar(query) is not None


def require_still_good(session: Session, member: MemberPrincipal) -> None:
    """Check a member again, in the transaction, because the operator may have acted meanwhile.

    Raises Unauthenticated for a revoked member, Suspended for a suspended one.
    """
    _good(session, _STANDING, {"member": member.id})


def _good(session: Session, query: Executable, values: Mapping[str, Any]) -> Row[Any]:
    row = session.connection().execute(query, values).one_or_none()
    if row is None:
        raise Unauthenticated(_NOT_VALID)
    require_good(row.active, row.suspended)
    return row


def require_good(active: bool, suspended: bool) -> None:
    """Raises Unauthenticated for a revoked member, Suspended for a suspended one."""
    if not active:
        raise Unauthenticated(_NOT_VALID)
    if suspended:
        raise Suspended(
            "The operator has suspended this member; what it has handed in still counts. Ask the "
            "operator; the daemon goes on by itself when the member is reinstated."
        )


def require_own(run: str, member: MemberPrincipal) -> None:
    """Raises UnknownRun for a run that is not the member's."""
    if run != member.run:
        raise UnknownRun(f"There is no run {run!r} for this token.")


def require_going(cancelled: bool) -> None:
    """Raises RunCancelled if the member's run was cancelled."""
    if cancelled:
        raise RunCancelled()


def require_accepted(member: MemberPrincipal) -> None:
    """Raises HelloNeeded for a member whose last hello was refused, or that never said hello."""
    if not member.accepted:
        raise HelloNeeded(
            "This member has not shown that its base model and verifier are the run's. Restart its "
            "daemon, which says hello, and fix the reason for which that is refused."
        )


def require_operator(principal: Principal) -> None:
    """Raises Forbidden for a member."""
    if not isinstance(principal, Operator):
        raise Forbidden("Only the operator may do this.")


def require_member(principal: Principal, role: Role | None = None) -> MemberPrincipal:
    """The member; raises Forbidden for the operator, or for a member with another role."""
    if not isinstance(principal, MemberPrincipal):
        raise Forbidden("This is for members of the run; the operator's token does not work here.")
    if role is not None and principal.role is not role:
        raise Forbidden(f"This is for members with the role {role}; yours is {principal.role}.")
    return principal
