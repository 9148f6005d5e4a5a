"""A run's activity and what it waits for, in words, and its remaining time."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from pubswap_protocol.messages import RunState
from pubswap_server.clock import now
from pubswap_server.database.tables import RunRow
from pubswap_server.runs import history, members
from pubswap_server.runs.snapshot import NOBODY, Awaited, read_snapshot
from pubswap_server.runs.state import ENDED


@dataclass(frozen=True, slots=True)
class RunActivity:
    """`alert` is what needs the operator's attention."""

    words: str
    alert: str | None = None
    awaited: Awaited = NOBODY

    @property
    def text(self) -> str:
        """The activity with the members awaited and the deadline, without the alert."""
        waits = f" Waits for {self.awaited.who}{self.awaited.deadline}." if self.awaited.who else ""
        return self.words + waits


def read_activity(session: Session, run: RunRow) -> RunActivity:
    state, settings = RunState(run.state), run.settings
    alert = run.failure or run.waiting_for
    if state.ended:
        return RunActivity(f"{state.capitalize()} in round {run.round} of {settings.rounds}.")
    if run.paused:
        return RunActivity("Paused: no new work is given out until the operator resumes it.", alert)
    if state is RunState.CREATED:
        return RunActivity("Created: waiting for its files, and to be opened.", alert)
    if state is RunState.OPEN:
        enrolled = len(members.enrolled_clients(session, run.id))
        if enrolled < settings.clients:
            words = f"Open: {enrolled} of {settings.clients} organisations have enrolled."
        else:
            words = "Open: all organisations have enrolled; the operator can start it."
        return RunActivity(words, alert)
    if state is RunState.AGGREGATING:
        return RunActivity(f"The coordinator is averaging round {run.round}.", alert)
    return _round(session, run, alert)


def _round(session: Session, run: RunRow, alert: str | None) -> RunActivity:
    """The progress of the round under way: of an exchange with answers, or of the updates."""
    snapshot = read_snapshot(session, run.id)
    for number, exchange in sorted(snapshot.exchanges.items()):
        if not exchange.closed and exchange.members:
            count = len(exchange.members)
            words = (
                f"Round {run.round}, public step {number}: {count} of "
                f"{count + len(exchange.awaited.members)} organisations have answered."
            )
            return RunActivity(words, alert, exchange.awaited)
    count = len(snapshot.handed_in)
    words = (
        f"Round {run.round} of {run.settings.rounds}: {count} of "
        f"{count + len(snapshot.awaited.members)} organisations have handed in their updates."
    )
    return RunActivity(words, alert, snapshot.awaited)


def read_end(session: Session, run: RunRow) -> datetime | None:
    """The expected end of a run under way, judged by its last rounds; None before the first."""
    if run.paused or run.state in ENDED:
        return None
    ends = history.last_round_ends(session, run.id)
    return history.expected_end(ends, run.settings.rounds - run.round + 1, now())
