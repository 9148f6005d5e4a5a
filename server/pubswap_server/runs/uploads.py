"""Upload sessions: space is reserved before the first byte, and a session lasts a day."""

import secrets
from datetime import timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import NoSpace, TooLarge, TooManyAdapters, UnknownUpload, WrongState
from pubswap_protocol.messages import OpenUpload
from pubswap_server.clock import now
from pubswap_server.database.tables import BlobRow, RunRow, UploadRow
from pubswap_server.runs import runs, traffic
from pubswap_server.runs.auth import MemberPrincipal
from pubswap_server.runs.state import ENDED

# Adapters that a member may store in a round: its own, one that came too late, and a second try.
ADAPTERS_A_ROUND = 3
# A member's uploads under way. One more ends the oldest, so that no member is ever locked out.
SESSIONS = 3
SESSION_SECONDS = 24 * 3600.0  # how long an interrupted upload can be continued


def open_session(
    session: Session,
    run: RunRow,
    member: MemberPrincipal,
    request: OpenUpload,
    largest: int,
    spare: int,
    free: int | None,
) -> tuple[UploadRow | None, bool, list[str]]:
    """The member's session for this blob; None if the blob is stored.

    Also returns whether the session is new, without any bytes yet, and the ids of the sessions that
    it ends, whose bytes are to be dropped. All in bytes: `largest` is the size of the largest
    adapter, `spare` stays free, and the store has `free` left, None if unlimited. Raises TooLarge,
    TooManyAdapters, WrongState for a run that has ended, RunPaused for a new upload, or NoSpace if
    too little is left besides all reservations.
    """
    if session.get(BlobRow, (run.id, request.digest, member.name)) is not None:
        return None, False, []
    require_turn(session, run, member)
    if request.size > largest:
        raise TooLarge(f"An adapter of this run has at most {largest} bytes.")
    # The member's sessions, the oldest first.
    query = select(UploadRow).where(UploadRow.run_id == run.id, UploadRow.member == member.name)
    query = query.where(UploadRow.expires_at > now()).order_by(UploadRow.expires_at)
    present = list(session.scalars(query))
    for row in present:
        if (row.digest, row.size) == (request.digest, request.size):
            return row, False, []
    runs.require_resumed(run)  # an upload that has begun may end
    ended = [row.id for row in present[: max(0, len(present) - SESSIONS + 1)]]
    session.execute(delete(UploadRow).where(UploadRow.id.in_(ended)))
    check_room(session, request.size, spare, free)
    row = UploadRow(
        id=secrets.token_hex(16),
        run_id=run.id,
        member=member.name,
        digest=request.digest,
        size=request.size,
        expires_at=now() + timedelta(seconds=SESSION_SECONDS),
    )
    session.add(row)
    return row, True, ended


def require_turn(session: Session, run: RunRow, member: MemberPrincipal) -> None:
    """Raises WrongState or TooManyAdapters unless the member may store another adapter now."""
    if run.state in ENDED:
        raise WrongState(f"The run is {run.state}; it takes no more adapters.")
    stored = session.scalar(
        select(func.count()).where(BlobRow.run_id == run.id, BlobRow.member == member.name)
    )
    if (stored or 0) >= ADAPTERS_A_ROUND:
        raise TooManyAdapters(
            f"You have stored {stored} adapters in round {run.round}, and more are not taken: hand "
            "one of them in with POST .../update, or wait for the next round."
        )


def find(session: Session, run: RunRow, member: MemberPrincipal, upload: str) -> UploadRow:
    """A member's own open session; raises UnknownUpload for any other."""
    row = session.get(UploadRow, upload)
    if row is None or (row.run_id, row.member) != (run.id, member.name) or row.expires_at <= now():
        raise UnknownUpload("You have no such upload; open a new one.")
    return row


def finish(session: Session, run: RunRow, member: MemberPrincipal, upload: UploadRow) -> None:
    """Record the upload as a blob, and end its session.

    Raises UnknownUpload if the session has ended otherwise, and whatever `require_turn` raises.
    """
    if session.get(BlobRow, (run.id, upload.digest, member.name)) is not None:
        return
    find(session, run, member, upload.id)
    require_turn(session, run, member)
    key = {"run_id": run.id, "digest": upload.digest, "member": member.name}
    session.add(BlobRow(**key, size=upload.size))
    forget(session, upload.id)
    traffic.count(session, {(run.id, run.round, member.name, "adapters_up"): upload.size})


def forget(session: Session, upload: str) -> None:
    session.execute(delete(UploadRow).where(UploadRow.id == upload))


def take_expired(session: Session) -> list[str]:
    """End the sessions that have expired; returns their ids."""
    expired = delete(UploadRow).where(UploadRow.expires_at <= now())
    return list(session.scalars(expired.returning(UploadRow.id)))


def check_room(session: Session, size: int, spare: int, free: int | None) -> None:
    """Raises NoSpace unless `size` more bytes fit; `spare` and `free` as in `open_session`."""
    if free is None:
        return
    reserved = session.scalar(select(func.sum(UploadRow.size))) or 0
    if free - reserved - size < spare:
        raise NoSpace(
            f"The coordinator's disk has {free} bytes left, {reserved} of them reserved, and keeps "
            f"{spare} free; {size} more do not fit. Try again when the operator has made room.",
            retry_after=30,
        )
