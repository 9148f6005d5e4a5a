"""Why a run waits, and what the operator can do about it."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import SelectBase, select, union_all
from sqlalchemy.orm import Session

from pubswap_protocol.command_line.amounts import first_few
from pubswap_protocol.errors import NoSpace
from pubswap_server.clock import now
from pubswap_server.database.tables import BlobRow, RunRow, UploadRow
from pubswap_server.exchange import exchanges
from pubswap_server.exchange.exchanges import rules_of_exchange
from pubswap_server.monitoring.webhook import Notice
from pubswap_server.runs import events, members, rounds, runs, uploads
from pubswap_server.runs.events import ROUND_BEGINS, record_sparingly
from pubswap_server.runs.quorum import Arrivals
from pubswap_server.runs.snapshot import MAX_NAMES
from pubswap_server.runs.state import ROUND_UNDER_WAY

SILENT_SECONDS = 3600.0  # of silence, before a client that a round waits for is reported
VERDICT_SECONDS = 600.0  # without verdicts, before responses are reported
_FAILURE_REMEDY = (
    "See the updates with `pubswap run show RUN`; then leave one out with `pubswap run exclude RUN "
    "MEMBER`, go back with `pubswap run rollback RUN --to ROUND`, or cancel the run."
)


def note_stall(session: Session, run: RunRow, free: int | None, spare: int) -> Notice | None:
    """Store and log why a run waits, if that has changed; returns the notice for the operator.

    In bytes: the store has `free` left, None if unlimited, of which `spare` stay free.
    """
    reason = _reason(session, run, free, spare)
    if reason == run.waiting_for:
        return None
    run.waiting_for = reason
    if reason is None:
        return None
    # Members that come and go can change the reason as often as they like.
    if not record_sparingly(session, run.id, "waiting", reason=reason, round=run.round):
        return None
    return Notice(run.id, run.name, "failing" if run.failure else "waiting", reason)


def of_an_update_that_stands_out(run: RunRow, round_: int, details: Mapping[str, Any]) -> Notice:
    """The notice of an `update stands out` in the log, with its details there."""
    times = details["norm"] / details["median_of_others"]
    words = (
        f"The update of {details['member']} to round {round_} is {times:.3g} times as long as the "
        f"others'. If the model has got worse, `pubswap member suspend {run.name} "
        f"{details['member']}`, then `pubswap run rollback {run.name} --to {round_ - 1}`."
    )
    return Notice(run.id, run.name, "warning", words)


def _reason(session: Session, run: RunRow, free: int | None, spare: int) -> str | None:
    """Why the run cannot reach its quorum or store an update, or None if it can."""
    if run.failure is not None:
        return f"{run.failure} {_FAILURE_REMEDY}"
    if run.state not in ROUND_UNDER_WAY:
        return None
    if reason := _unreadable(session, run):
        return reason
    for row in exchanges.open_rows(session, run):
        arrivals = exchanges.arrivals(session, run, row)
        what = f"Public step {row.public_step} of round {run.round}"
        if arrivals.missing:
            return (
                f"{what} closes with {arrivals.quorum} or more clients; {arrivals.arrived} "
                f"answered and {arrivals.missing} more are missing. {_quorum_remedy(session, run)}"
            )
        if rules_of_exchange(run).quorum is None and not run.paused and arrivals.overdue(now()):
            return _overdue(session, run, what, arrivals, exchanges.arrived(row))
    arrivals, what = rounds.arrivals(session, run), f"Round {run.round}"
    if arrivals.missing:
        return (
            f"{what} closes with {arrivals.quorum} or more updates; {arrivals.arrived} came and "
            f"{arrivals.missing} more clients are missing. {_quorum_remedy(session, run)}"
        )
    if not arrivals.outstanding:
        return None
    if reason := _full(session, run, free, spare):
        return reason
    if run.settings.aggregation.quorum is None and not run.paused and arrivals.overdue(now()):
        return _overdue(session, run, what, arrivals, rounds.arrived(run))
    return _silent(session, run, arrivals)


def _unreadable(session: Session, run: RunRow) -> str | None:
    """Why no responses can be taken or verified, or None if they can."""
    if damage := events.damaged_input(session, run.id):
        return (
            f"The run's {damage.details['what']} ({damage.details['digest']}) cannot be read. Put "
            "that blob back from a backup: members try again by themselves. Or cancel the run."
        )
    for _, _, public_step, member in exchanges.unverified(
        session, now() - timedelta(seconds=VERDICT_SECONDS), run.id
    ):
        return (
            f"The responses of {member} to public step {public_step} of round {run.round} have "
            f"had no verdicts for {VERDICT_SECONDS / 60:g} minutes; the coordinator's log says why."
        )
    return None


def _quorum_remedy(session: Session, run: RunRow) -> str:
    away = members.away_clients(session, run.id)
    some = first_few((f"{name} ({code})" for name, code in away), MAX_NAMES)
    away_text = f" These are away: {some}." if away else ""
    return (
        f"Reinstate or invite clients (`pubswap member reinstate {run.name} MEMBER`, `pubswap "
        f"invite {run.name} NAME`), or cancel the run.{away_text}"
    )


def _overdue(
    session: Session, run: RunRow, what: str, arrivals: Arrivals, arrived: SelectBase
) -> str:
    """Why a round or an exchange stays open after its deadline, and the command that ends that."""
    heard = members.heard(session, run.id, arrived, arrivals.deadline_seconds)
    return (
        f"{what} is past its deadline and waits for half of its clients: {arrivals.quorum} or "
        f"more; {arrivals.arrived} came. It waits for {first_few(heard, MAX_NAMES)}. To go on "
        f"without them if they do not come, suspend {arrivals.in_the_way} of them: "
        f"`pubswap member suspend {run.name} MEMBER`."
    )


def _silent(session: Session, run: RunRow, arrivals: Arrivals) -> str | None:
    """Why silent clients keep the round from its quorum; None if not, or in its first hour."""
    cutoff = now() - timedelta(seconds=SILENT_SECONDS)
    silent = members.silent(session, run.id, rounds.arrived(run), cutoff)
    heard = replace(arrivals, outstanding=arrivals.outstanding - len(silent))
    if run.paused or not heard.missing:
        return None
    if events.last_at(session, run.id, (*ROUND_BEGINS, "resumed")) > cutoff:
        return None
    return (
        f"Round {run.round} waits for {first_few(silent, 1)}, not heard of for "
        f"{SILENT_SECONDS / 3600:g} h. Ask whether the daemon runs, or suspend the member: "
        f"`pubswap member suspend {run.name} {silent[0]}`."
    )


def _full(session: Session, run: RunRow, free: int | None, spare: int) -> str | None:
    """Why updates that are still expected cannot be stored, or None if they can."""
    size = runs.largest_update_of(run)
    try:
        uploads.check_room(session, size, spare, free)
        return None
    except NoSpace:
        stored = union_all(
            rounds.arrived(run),
            *(select(row.member).where(row.run_id == run.id) for row in (BlobRow, UploadRow)),
        )
        if not members.outstanding(session, run.id, stored):
            return None
        return (
            f"The coordinator's disk has no room for an update of {size} bytes. Make room there, "
            "or delete runs that have ended; members try again by themselves."
        )
