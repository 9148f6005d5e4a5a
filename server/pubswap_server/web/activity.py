"""What a run is doing now, and what it waits for: in words, for whom, and until when."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from pubswap_protocol.messages import RunState
from pubswap_server.database.tables import RunRow, SwapRow
from pubswap_server.runs import members, rounds, runs
from pubswap_server.runs.quorum import Turnout, closes_at
from pubswap_server.runs.snapshot import read_snapshot

MOST_NAMES = 8


@dataclass(frozen=True, slots=True)
class RunActivity:
    """`alert` is what the operator must see to; `members` are those that are waited for."""

    words: str
    alert: str | None = None
    members: tuple[str, ...] = ()
    until: datetime | None = None

    @property
    def who(self) -> str:
        """The first members by name, and how many more."""
        first = ", ".join(self.members[:MOST_NAMES])
        more = len(self.members) - MOST_NAMES
        return f"{first} and {more} more" if more > 0 else first


def read_activity(session: Session, run: RunRow) -> RunActivity:
    state, settings = RunState(run.state), runs.settings_of(run)
    alert = run.failure or run.waiting_for
    if state in (RunState.FINISHED, RunState.CANCELLED):
        return RunActivity(f"{state.capitalize()} in round {run.round} of {settings.rounds}.")
    if run.paused:
        return RunActivity("Paused: no new work is given out until the operator resumes it.", alert)
    if state is RunState.CREATED:
        return RunActivity("Created: waits for its files, and to be opened.", alert)
    here = members.active_clients(session, run.id)
    if state is RunState.OPEN:
        lacking = settings.clients - len(here)
        if lacking > 0:
            words = f"Open: {len(here)} of {settings.clients} organisations have enrolled."
        else:
            words = "Open: all organisations have enrolled; the operator can start it."
        return RunActivity(words, alert)
    if state is RunState.AGGREGATING:
        return RunActivity(f"The coordinator averages round {run.round}.", alert)
    return _round(session, run, here, alert)


def _round(session: Session, run: RunRow, here: set[str], alert: str | None) -> RunActivity:
    """Of a round under way: an exchange that some have answered, or the updates."""
    snapshot, settings = read_snapshot(session, run.id), runs.settings_of(run)
    for number, exchange in sorted(snapshot.exchanges.items()):
        if not exchange.closed and exchange.members:
            missing = tuple(sorted(here - exchange.members))
            first = session.get_one(SwapRow, (run.id, run.round, number)).first_at
            turnout = Turnout(len(exchange.members), len(missing), first)
            return RunActivity(
                f"Round {run.round}, public step {number}: {len(exchange.members)} of "
                f"{len(here | exchange.members)} organisations have answered.",
                alert,
                missing,
                closes_at(turnout, settings.swap.quorum, settings.swap.deadline_seconds),
            )
    missing = tuple(sorted(here - snapshot.handed_in))
    turnout, rules = rounds.turnout(session, run), settings.aggregation
    return RunActivity(
        f"Round {run.round} of {settings.rounds}: {turnout.arrived} of "
        f"{len(here | snapshot.handed_in)} organisations have handed in their updates.",
        alert,
        missing,
        closes_at(turnout, rules.quorum, rules.deadline_seconds),
    )
