"""What a run is doing now, and what it waits for: in words, for whom, and until when."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from pubswap_protocol.messages import RunState
from pubswap_server.database.tables import RunRow
from pubswap_server.runs import members, runs
from pubswap_server.runs.snapshot import NOBODY, Awaited, read_snapshot


@dataclass(frozen=True, slots=True)
class RunActivity:
    """`alert` is what the operator must see to."""

    words: str
    alert: str | None = None
    awaited: Awaited = NOBODY


def read_activity(session: Session, run: RunRow) -> RunActivity:
    state, settings = RunState(run.state), runs.settings_of(run)
    alert = run.failure or run.waiting_for
    if state.ended:
        return RunActivity(f"{state.capitalize()} in round {run.round} of {settings.rounds}.")
    if run.paused:
        return RunActivity("Paused: no new work is given out until the operator resumes it.", alert)
    if state is RunState.CREATED:
        return RunActivity("Created: waits for its files, and to be opened.", alert)
    if state is RunState.OPEN:
        enrolled = len(members.enrolled_clients(session, run.id))
        if enrolled < settings.clients:
            words = f"Open: {enrolled} of {settings.clients} organisations have enrolled."
        else:
            words = "Open: all organisations have enrolled; the operator can start it."
        return RunActivity(words, alert)
    if state is RunState.AGGREGATING:
        return RunActivity(f"The coordinator averages round {run.round}.", alert)
    return _round(session, run, members.active_clients(session, run.id), alert)


def _round(session: Session, run: RunRow, here: set[str], alert: str | None) -> RunActivity:
    """Of a round under way: an exchange that some have answered, or the updates."""
    snapshot = read_snapshot(session, run.id)
    for number, exchange in sorted(snapshot.exchanges.items()):
        if not exchange.closed and exchange.members:
            return RunActivity(
                f"Round {run.round}, public step {number}: {len(exchange.members)} of "
                f"{len(here | exchange.members)} organisations have answered.",
                alert,
                exchange.awaited,
            )
    return RunActivity(
        f"Round {run.round} of {runs.settings_of(run).rounds}: {len(snapshot.handed_in)} of "
        f"{len(here | snapshot.handed_in)} organisations have handed in their updates.",
        alert,
        snapshot.awaited,
    )
