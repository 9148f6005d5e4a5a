"""Upload sessions: room is reserved before the first byte, and a session is worth a day."""

import secrets
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import NoSpace, TooLarge, TooManyRequests, UnknownUpload
from pubswap_protocol.messages import OpenUpload
from pubswap_server import traffic
from pubswap_server.auth import Member
from pubswap_server.tables import BlobRow, RunRow, UploadRow, now


@dataclass(frozen=True)
class UploadLimits:
    """What a member may have on the way and stored; bytes, and seconds."""

    largest: int
    at_once: int
    quota: int
    spare: int
    expire_seconds: float


def open_session(
    session: Session,
    run: RunRow,
    member: Member,
    wanted: OpenUpload,
    limits: UploadLimits,
    free: int | None,
) -> UploadRow | None:
    """The member's session for this blob, made or found again; None if the blob is stored.

    `free` are the store's free bytes, None if it has no limit. Raises TooLarge, TooManyRequests,
    or NoSpace if the member's quota or the store's room, less all that is reserved, is too small.
    """
    if session.get(BlobRow, (run.id, wanted.digest, member.name)) is not None:
        return None
    if wanted.size > limits.largest:
        raise TooLarge(f"An adapter of this run has at most {limits.largest} bytes.")
    mine = _open(session, run, member)
    for row in mine:
        if (row.digest, row.size) == (wanted.digest, wanted.size):
            return row
    if len(mine) >= limits.at_once:
        raise TooManyRequests(
            f"You have {len(mine)} uploads under way; finish or delete one first.", retry_after=5
        )
    _check_room(session, run, member, wanted.size + sum(row.size for row in mine), limits)
    _check_disk(session, wanted.size, limits.spare, free)
    row = UploadRow(
        id=secrets.token_hex(16),
        run_id=run.id,
        member=member.name,
        digest=wanted.digest,
        size=wanted.size,
        expires_at=now() + timedelta(seconds=limits.expire_seconds),
    )
    session.add(row)
    return row


def find(session: Session, run: RunRow, member: Member, upload: str) -> UploadRow:
    """A member's own open session; raises UnknownUpload for any other."""
    row = session.get(UploadRow, upload)
    if row is None or (row.run_id, row.member) != (run.id, member.name) or row.expires_at <= now():
        raise UnknownUpload("There is no such upload of yours; open one again.")
    return row


def finish(session: Session, run: RunRow, member: Member, upload: UploadRow, stored: str) -> None:
    """Note that the upload is the blob `stored`; the session ends."""
    blob = BlobRow(
        run_id=run.id,
        digest=upload.digest,
        member=member.name,
        canonical=stored,
        size=upload.size,
    )
    session.merge(blob)
    session.execute(delete(UploadRow).where(UploadRow.id == upload.id))
    traffic.count(session, run.id, run.round, member.name, "adapters_up", upload.size)


def forget(session: Session, upload: str) -> None:
    """End a session."""
    session.execute(delete(UploadRow).where(UploadRow.id == upload))


def take_expired(session: Session) -> list[str]:
    """End the sessions whose time is over; returns their ids."""
    expired = list(session.scalars(select(UploadRow.id).where(UploadRow.expires_at <= now())))
    session.execute(delete(UploadRow).where(UploadRow.id.in_(expired)))
    return expired


def _open(session: Session, run: RunRow, member: Member) -> list[UploadRow]:
    rows = session.scalars(
        select(UploadRow).where(
            UploadRow.run_id == run.id,
            UploadRow.member == member.name,
            UploadRow.expires_at > now(),
        )
    )
    return list(rows)


def _check_room(
    session: Session, run: RunRow, member: Member, wanted: int, limits: UploadLimits
) -> None:
    stored = session.scalar(
        select(func.sum(BlobRow.size)).where(
            BlobRow.run_id == run.id, BlobRow.member == member.name
        )
    )
    if (stored or 0) + wanted > limits.quota:
        raise NoSpace(
            f"{stored or 0} bytes of yours are stored and {wanted} are on the way; a member of "
            f"this run may have {limits.quota}. The operator can raise member_quota_bytes."
        )


def _check_disk(session: Session, size: int, spare: int, free: int | None) -> None:
    if free is None:
        return
    reserved = session.scalar(select(func.sum(UploadRow.size))) or 0
    if free - reserved - size < spare:
        raise NoSpace(
            f"The coordinator's disk has {free} bytes left, {reserved} of them reserved, and keeps "
            f"{spare} free; {size} more do not fit. Try again when the operator has made room.",
            retry_after=30,
        )
