"""The round under way: each member's steps as a bar, what it does, and when the round ends."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from pubswap_protocol.command_line.amounts import duration_text, first_few
from pubswap_protocol.schedule import public_updates
from pubswap_server.database.tables import RunRow
from pubswap_server.runs import members, rounds
from pubswap_server.runs.activity import read_ends
from pubswap_server.runs.members import MemberReport
from pubswap_server.runs.quorum import HEARD_SECONDS
from pubswap_server.runs.snapshot import RunSnapshot, read_snapshot
from pubswap_server.runs.state import ROUND_UNDER_WAY

BARS = 24
MAX_TICKS = 100
NAMES = 3  # of those that a member waits for


@dataclass(frozen=True, slots=True)
class StepBar:
    """A member, the steps of the round that it has made, and what it does in words."""

    name: str
    step: int
    words: str


def read_progress(session: Session, run: RunRow) -> dict[str, Any]:
    """The template's values. Of many members, those that are furthest behind are shown."""
    if run.state not in ROUND_UNDER_WAY:
        return {"bars": []}
    snapshot, steps = read_snapshot(session, run.id), run.settings.local_steps
    reports = members.reports(session, run.id)
    made = {name: report.step(run.round) for name, report in reports.items()}
    made |= {name: steps for name in snapshot.handed_in if name in made}
    behind = sorted(made, key=lambda name: (made[name], name))[:BARS]
    ticks = public_updates(run.settings)
    present = rounds.arrivals(session, run)
    return {
        "bars": [
            StepBar(name, min(steps, made[name]), doing(snapshot, name, reports[name]))
            for name in sorted(behind)
        ],
        "more_bars": len(made) - len(behind),
        "ticks": ticks if len(ticks) <= MAX_TICKS else [],
        "round_end": read_ends(session, run)[0],
        "deadline": present.deadline,
        "deadline_seconds": present.deadline_seconds,
        "quorum": present.quorum,
    }


def doing(snapshot: RunSnapshot, name: str, report: MemberReport) -> str:
    """What a member does, in a few words."""
    progress, unseen = report.progress, report.unseen_seconds
    if name in snapshot.handed_in:
        return "has handed in its update"
    if progress is not None and progress.held is not None:
        return progress.held
    for number, exchange in sorted(snapshot.exchanges.items()):
        waiting = exchange.awaited.members
        if not exchange.closed and exchange.members and name in waiting:
            return f"others wait for it at public step {number}"
        if not exchange.closed and waiting and name in exchange.members:
            return f"waits for {first_few(waiting, NAMES)} at public step {number}"
    if unseen is None or unseen > HEARD_SECONDS:
        return "not started" if unseen is None else f"not heard from for {duration_text(unseen)}"
    return "trains" if report.step(snapshot.round) else "makes its first step"
