"""A run in words: its activity and what it waits for, its remaining time, and its results."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from pubswap_protocol.command_line.amounts import duration_text, first_few, size_text
from pubswap_protocol.messages import Role, RunState, held_text
from pubswap_server.clock import now
from pubswap_server.database.tables import RunRow
from pubswap_server.runs import evaluations, events, history, members
from pubswap_server.runs.snapshot import MAX_NAMES, NOBODY, PendingMembers, read_snapshot
from pubswap_server.runs.state import ENDED


@dataclass(frozen=True, slots=True)
class RunActivity:
    """What a run does now, in words for the operator; `alert` is what needs attention."""

    words: str
    alert: str | None = None
    awaited: PendingMembers = NOBODY

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
        return RunActivity(_paused(session, run), alert)
    if state is RunState.CREATED:
        return RunActivity("Created: waiting for its files, and to be opened.", alert)
    if state is RunState.OPEN:
        enrolled = len(members.enrolled_clients(session, run.id))
        if enrolled < settings.clients:
            words = f"Open: {enrolled} of {settings.clients} organisations have enrolled."
            words += f" To invite one: pubswap invite {run.name} NAME."
        else:
            words = "Open: all organisations have enrolled."
            words += f" To start it: pubswap run start {run.name}."
        return RunActivity(words, alert)
    if state is RunState.AGGREGATING:
        return RunActivity(f"The coordinator is averaging round {run.round}.", alert)
    return _round(session, run, alert)


def _paused(session: Session, run: RunRow) -> str:
    """What a paused run's members hold."""
    words = "Paused: members send neither responses nor updates until the operator resumes it."
    held = members.held(session, run.id)
    some = (f"{name} holds {held_text(holds)}" for name, holds in held)
    return f"{words} {first_few(some, MAX_NAMES)}." if held else words


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
    """The expected end of a run under way; None before the first step."""
    return read_ends(session, run)[1]


def read_ends(session: Session, run: RunRow) -> tuple[datetime | None, datetime | None]:
    """The expected ends of the round and of the run under way; None if nothing tells them yet.

    The last rounds tell them and, before the end of one, the steps of the slowest member.
    """
    if run.paused or run.state in ENDED:
        return None, None
    ends = history.last_round_ends(session, run.id)
    share = 0.0 if len(ends) > 1 else _share_done(session, run)
    left = run.settings.rounds - run.round + 1
    of_round, of_run = (history.expected_end(ends, each, now(), share) for each in (1, left))
    return of_round, of_run


def _share_done(session: Session, run: RunRow) -> float:
    """The share of the round that the slowest member has made, of those that have begun it."""
    tau = run.settings.local_steps
    return min(members.fewest_steps(session, run.id, run.round), tau) / tau


def read_summary(session: Session, run: RunRow) -> str:
    """A finished run's results, as text to forward."""
    settings = run.settings
    clients = [each for each in members.views(session, run.id) if each.role is Role.CLIENT]
    took = events.last_at(session, run.id, ("aggregated",)) - run.created_at
    sent, received = (
        sum(getattr(each.traffic, way) for each in clients) // max(1, len(clients))
        for way in ("up", "down")
    )
    evaluated = history.first_and_last_evaluation(session, run.id)
    scores = "It was not evaluated. An evaluator that enrols now still measures all rounds."
    if evaluated:
        before, after = (evaluations.in_words(each) for _, each in evaluated)
        scores = f"pass@1 on the test problems: {before} before, {after} after."
    return (
        f"{run.name} is finished: {len(clients)} organisations trained {run.model.source} "
        f"for {run.round} rounds of {settings.local_steps} steps by {settings.method.name}.\n"
        f"{scores}\n"
        f"It took {duration_text(took.total_seconds())} from its creation, and each organisation "
        f"sent {size_text(sent)} and received {size_text(received)} on average."
    )
