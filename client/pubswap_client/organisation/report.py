"""What an organisation knows of its run; `client status` and `summary.html` show it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.state.history import HELD_OUT, HISTORY, HeldOutScore, RoundFigures, read
from pubswap_client.state.lock import holder
from pubswap_client.state.status import DaemonStatus, read_status
from pubswap_protocol.command_line.amounts import interval_text, size_text
from pubswap_protocol.errors import PubSwapError
from pubswap_protocol.messages import Membership, RunView

ASK_SECONDS = 30.0  # between requests to the coordinator, while nothing happens here


@dataclass(frozen=True)
class MemberReport:
    """`process` is the running daemon's id; `fault` says why the coordinator did not answer."""

    member: Membership
    process: str | None
    daemon: DaemonStatus | None
    history: Sequence[RoundFigures]
    held_out: Sequence[HeldOutScore]
    run: RunView | None = None
    fault: str | None = None
    asked_at: float = 0.0  # by the monotonic clock

    @classmethod
    def read(cls, state: Path, member: Membership) -> Self:
        """All that the state folder has; the run is not known yet."""
        run = member.run
        history = read(state / HISTORY, run, RoundFigures)
        held_out = read(state / HELD_OUT, run, HeldOutScore)
        return cls(member, holder(state), read_status(state, run), history, held_out)

    @property
    def rewards(self) -> list[float | None]:
        """Own reward of each step so far, including the current round's."""
        rewards = [reward for each in self.history for reward in each.rewards]
        now = self.daemon
        if now is None:
            return rewards
        # After a rollback, a round with the same number is another one.
        recorded = any(
            past.round == now.round and past.rewards[: len(now.rewards)] == now.rewards
            for past in self.history[-1:]
        )
        return rewards if recorded else rewards + now.rewards

    @property
    def over(self) -> bool:
        """Whether there is nothing more to watch: no daemon runs, or the run has ended."""
        return self.process is None or (self.run is not None and self.run.state.ended)

    @property
    def bytes_text(self) -> str | None:
        """The traffic since enrolment, once there was any."""
        if self.daemon is None:
            return None
        sent, received = size_text(self.daemon.sent_bytes), size_text(self.daemon.received_bytes)
        return f"{sent} sent, {received} received"

    @property
    def activity(self) -> tuple[str | None, int]:
        """The running daemon, and the round that it has reached."""
        return self.process, self.daemon.round if self.daemon else 0


def look(
    state: Path, member: Membership, api: CoordinatorClient, last: MemberReport | None = None
) -> MemberReport:
    """The report now; if the coordinator does not answer, from the state folder alone.

    Each request to the coordinator is an entry in the ledger. It is asked again when the daemon has
    reached another round or has ended since the `last` report, and otherwise every 30 s.
    """
    report = MemberReport.read(state, member)
    now = time.monotonic()
    if last and last.activity == report.activity and now - last.asked_at < ASK_SECONDS:
        return replace(report, run=last.run, fault=last.fault, asked_at=last.asked_at)
    try:
        report = replace(report, run=api.run(member.run))
    except PubSwapError as error:
        report = replace(report, fault=error.detail)
    return replace(report, asked_at=time.monotonic())


def comparable(scores: Sequence[HeldOutScore]) -> list[HeldOutScore]:
    """Scores on the problems that are held out now, without rounds undone by a rollback."""
    retained: list[HeldOutScore] = []
    for score in scores:
        if score.digest == scores[-1].digest:
            while retained and retained[-1].round >= score.round:
                retained.pop()
            retained.append(score)
    return retained


def held_out_text(scores: Sequence[HeldOutScore]) -> str:
    """The change on our own problems, from the first measured adapter to the last."""
    scores = comparable(scores)
    first, last = scores[0], scores[-1]
    if len(scores) == 1:
        text = f"{last.pass_at_1:.3f} after round {last.round}"
    else:
        change = change_text(first.pass_at_1, last.pass_at_1)
        text = f"{change} from round {first.round} to round {last.round}"
    interval = interval_text(last.pass_at_1, last.problems)
    return f"{text}, on {last.problems} held-out problems of our own (95 %: {interval})"


def change_text(before: float, after: float) -> str:
    return f"{before:.3f} → {after:.3f} ({after - before:+.3f})"
