"""What a run waits for that only the operator can give, as its event log and `run show` say it."""

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import NoSpace
from pubswap_protocol.messages import Role
from pubswap_protocol.wire import largest_update
from pubswap_server import members, rounds, runs, uploads
from pubswap_server.closing import missing
from pubswap_server.events import record
from pubswap_server.state import ROUND_UNDER_WAY
from pubswap_server.tables import BlobRow, RunRow, SubmissionRow, SwapRow, UploadRow

_REMEDY = "Reinstate or invite clients, or cancel the run."


@dataclass(frozen=True)
class Room:
    """The store's free bytes, None if it has no limit, and how many of them stay free."""

    free: int | None
    spare: int


def note(session: Session, run: RunRow, room: Room) -> None:
    """Keep and log what a run waits for, when that has changed."""
    found = _reason(session, run, room)
    if found == run.waiting_for:
        return
    run.waiting_for = found
    if found is not None:
        record(session, run.id, "waiting", reason=found, round=run.round)


def _reason(session: Session, run: RunRow, room: Room) -> str | None:
    """Why no arrival can bring about a quorum, or none can be stored; None while one can."""
    if run.failure is not None:
        return run.failure
    if run.state not in ROUND_UNDER_WAY:
        return None
    active, settings = members.active_clients(session, run.id), runs.settings_of(run)
    for swap in _open_exchanges(session, run):
        arrived = _arrived(session, run, swap)
        if short := missing(active, arrived, settings.swap.quorum):
            return (
                f"Public step {swap} of round {run.round} closes with {settings.swap.quorum} or "
                f"more clients; {len(arrived)} answered and {short} more are missing. {_REMEDY}"
            )
    arrived = {row.member for row in rounds.taken(session, run, run.round)}
    active = rounds.expected(session, run)
    if short := missing(active, arrived, settings.aggregation.quorum):
        return (
            f"Round {run.round} closes with {settings.aggregation.quorum} or more updates; "
            f"{len(arrived)} came and {short} more {Role.CLIENT}s are missing. {_REMEDY}"
        )
    return _full(session, run, active - arrived, room)


def _full(session: Session, run: RunRow, expected: set[str], room: Room) -> str | None:
    """Why the updates of members that are expected cannot be stored."""
    here = {
        name
        for row in (BlobRow, UploadRow)
        for name in session.scalars(select(row.member).where(row.run_id == run.id))
    }
    size = largest_update(runs.sent_layout_of(run), runs.settings_of(run).wire.precision)
    try:
        if expected - here:
            uploads.check_room(session, size, room.spare, room.free)
    except NoSpace:
        return (
            f"The coordinator's disk has no room for an update of {size} bytes. Make room there, "
            "or delete runs that have ended; members try again by themselves."
        )
    return None


def _open_exchanges(session: Session, run: RunRow) -> list[int]:
    rows = session.scalars(
        select(SwapRow.swap).where(
            SwapRow.run_id == run.id, SwapRow.round == run.round, SwapRow.closed.is_(False)
        )
    )
    return sorted(rows)


def _arrived(session: Session, run: RunRow, swap: int) -> set[str]:
    rows = session.scalars(
        select(SubmissionRow.member).where(
            SubmissionRow.run_id == run.id,
            SubmissionRow.round == run.round,
            SubmissionRow.swap == swap,
            SubmissionRow.late.is_(False),
        )
    )
    return set(rows)
