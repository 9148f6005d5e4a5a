"""What a run waits for that only the operator can give, as its event log and `run show` say it."""

from dataclasses import dataclass

from sqlalchemy import select, union_all
from sqlalchemy.orm import Session

from pubswap_protocol.errors import NoSpace
from pubswap_protocol.messages import Role
from pubswap_protocol.wire import largest_update
from pubswap_server import exchanges, members, rounds, runs, uploads
from pubswap_server.closing import missing
from pubswap_server.events import record
from pubswap_server.state import ROUND_UNDER_WAY
from pubswap_server.tables import BlobRow, RunRow, UploadRow

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
    settings = runs.settings_of(run)
    for row in exchanges.open_ones(session, run):
        found = exchanges.turnout(session, row)
        if short := missing(found, settings.swap.quorum):
            return (
                f"Public step {row.swap} of round {run.round} closes with {settings.swap.quorum} "
                f"or more clients; {found.arrived} answered and {short} more are missing. {_REMEDY}"
            )
    found = rounds.turnout(session, run)
    if short := missing(found, settings.aggregation.quorum):
        return (
            f"Round {run.round} closes with {settings.aggregation.quorum} or more updates; "
            f"{found.arrived} came and {short} more {Role.CLIENT}s are missing. {_REMEDY}"
        )
    return _full(session, run, room) if found.outstanding else None


def _full(session: Session, run: RunRow, room: Room) -> str | None:
    """Why the updates of members that are expected cannot be stored."""
    size = largest_update(runs.sent_layout_of(run), runs.settings_of(run).wire.precision)
    try:
        uploads.check_room(session, size, room.spare, room.free)
        return None
    except NoSpace:
        here = union_all(
            rounds.arrived(run),
            *(select(row.member).where(row.run_id == run.id) for row in (BlobRow, UploadRow)),
        )
        if not members.outstanding(session, run.id, here):
            return None
        return (
            f"The coordinator's disk has no room for an update of {size} bytes. Make room there, "
            "or delete runs that have ended; members try again by themselves."
        )
