"""Members: invited once, enrolled with a token of their own, revoked at will."""

from datetime import timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import InviteExpired, InviteUsed, NameTaken, NotFound, Unauthenticated
from pubswap_protocol.messages import (
    CreateInvite,
    Invite,
    Membership,
    MemberView,
    Progress,
    Role,
    Traffic,
)
from pubswap_server import traffic
from pubswap_server.auth import Member, new_secret, secret_after, sha256
from pubswap_server.events import record
from pubswap_server.tables import InviteRow, MemberRow, RunRow, now


def invite(session: Session, run: RunRow, wanted: CreateInvite) -> Invite:
    """A new invite; raises NameTaken if a member of the run has the name."""
    if _named(session, run.id, wanted.name) is not None:
        raise NameTaken(f"Run {run.name} already has a member {wanted.name!r}; choose another.")
    code = new_secret()
    expires_at = now() + timedelta(seconds=wanted.expires_in_seconds)
    session.add(
        InviteRow(
            code_sha256=sha256(code),
            run_id=run.id,
            name=wanted.name,
            role=wanted.role,
            expires_at=expires_at,
        )
    )
    record(session, run.id, "invited", member=wanted.name, role=wanted.role)
    return Invite(invite=code, name=wanted.name, role=wanted.role, expires_at=expires_at)


def enroll(session: Session, code: str, key: str | None = None) -> Membership:
    """Use an invite; again with the same key, the answer is the same.

    Raises Unauthenticated, InviteUsed, InviteExpired or NameTaken.
    """
    row = session.get(InviteRow, sha256(code), with_for_update=True)
    if row is None:
        raise Unauthenticated("There is no such invite; copy the whole code.")
    token = secret_after(code, key)
    before = _named(session, row.run_id, row.name)
    if before is not None and before.active and before.token_sha256 == sha256(token):
        return _membership(session, before, token)
    if row.used_at is not None:
        raise InviteUsed("This invite was already used; ask the operator for a new one.")
    if row.expires_at <= now():
        raise InviteExpired("This invite has expired; ask the operator for a new one.")
    if before is not None:
        raise NameTaken(f"A member {row.name!r} has enrolled already, with another invite.")
    row.used_at = now()
    member = MemberRow(run_id=row.run_id, name=row.name, role=row.role, token_sha256=sha256(token))
    session.add(member)
    record(session, row.run_id, "enrolled", member=row.name, role=row.role)
    return _membership(session, member, token)


def rotate(session: Session, member: Member, old: str, key: str | None = None) -> Membership:
    """A new token in place of the old one; again with the same key, the answer is the same."""
    row = session.get_one(MemberRow, member.id)
    token = secret_after(old, key)
    if row.token_sha256 != sha256(token):
        row.token_sha256 = sha256(token)
        record(session, row.run_id, "token rotated", member=row.name)
    return _membership(session, row, token)


def _membership(session: Session, row: MemberRow, token: str) -> Membership:
    run = session.get_one(RunRow, row.run_id)
    return Membership(
        run=run.id, run_name=run.name, name=row.name, role=Role(row.role), token=token
    )


def revoke(session: Session, run: RunRow, name: str) -> None:
    """Make a member's token worthless; raises NotFound."""
    row = _named(session, run.id, name)
    if row is None:
        raise NotFound(f"Run {run.name} has no member {name!r}.")
    row.active = False
    record(session, run.id, "revoked", member=name)


def active_clients(session: Session, run: str) -> set[str]:
    """The names of the clients that take part now."""
    rows = session.scalars(
        select(MemberRow.name).where(
            MemberRow.run_id == run, MemberRow.role == Role.CLIENT, MemberRow.active
        )
    )
    return set(rows)


def seen(session: Session, member: Member) -> None:
    """Note that a member is alive."""
    session.get_one(MemberRow, member.id).last_seen = now()


def views(session: Session, run: str) -> list[MemberView]:
    """All members, by name."""
    rows = session.scalars(
        select(MemberRow).where(MemberRow.run_id == run).order_by(MemberRow.name)
    )
    sizes = traffic.by_member(session, run)
    return [
        MemberView(
            name=row.name,
            role=Role(row.role),
            active=row.active,
            last_seen=row.last_seen,
            progress=Progress(**row.progress) if row.progress else None,
            traffic=sizes.get(row.name, Traffic()),
        )
        for row in rows
    ]


def _named(session: Session, run: str, name: str) -> MemberRow | None:
    return session.scalar(select(MemberRow).where(MemberRow.run_id == run, MemberRow.name == name))
