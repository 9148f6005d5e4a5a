"""An organisation's view of its run, from the state folder and the coordinator."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.operator.tables import sparkline, state_text
from pubswap_client.organisation.summary import held_out_text
from pubswap_client.state.history import HELD_OUT, HISTORY, HeldOutScore, RoundFigures, read
from pubswap_client.state.lock import holder
from pubswap_client.state.membership import StoredMembership
from pubswap_client.state.status import DaemonStatus, read_status
from pubswap_protocol.command_line.amounts import duration_text, size_text
from pubswap_protocol.errors import PubSwapError
from pubswap_protocol.messages import Membership, Role, RunView

WIDTH = 60  # steps in the curve
ASK_SECONDS = 30.0  # between requests to the coordinator, while nothing happens here


@dataclass(frozen=True)
class MemberStatus:
    """`process` is the running daemon's id; `fault` says why the coordinator did not answer."""

    member: Membership
    process: str | None
    daemon: DaemonStatus | None
    history: list[RoundFigures]
    run: RunView | None
    fault: str | None
    held_out: list[HeldOutScore] = field(default_factory=list)

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


class Observer:
    """Reads the state folder on each `look`, but asks the coordinator only now and then.

    Each request to it is an entry in the ledger. It is asked again when the daemon has reached
    another round or has ended, and otherwise every 30 s.
    """

    def __init__(self, state: Path, stored: StoredMembership, api: CoordinatorClient) -> None:
        self._state = state
        self._member = stored.membership
        self._api = api
        self._asked: tuple[str | None, int] | None = None  # process and round then
        self._asked_at = 0.0
        self._run: RunView | None = None
        self._fault: str | None = None

    def look(self) -> MemberStatus:
        """The status now; if the coordinator does not answer, from the state folder alone."""
        state, run = self._state, self._member.run
        process, daemon = holder(state), read_status(state, run)
        activity = process, daemon.round if daemon else 0
        if activity != self._asked or time.monotonic() - self._asked_at >= ASK_SECONDS:
            self._ask()
            self._asked, self._asked_at = activity, time.monotonic()
        return MemberStatus(
            member=self._member,
            process=process,
            daemon=daemon,
            history=read(state / HISTORY, run, RoundFigures),
            run=self._run,
            fault=self._fault,
            held_out=read(state / HELD_OUT, run, HeldOutScore),
        )

    def _ask(self) -> None:
        self._run, self._fault = None, None
        try:
            self._run = self._api.run(self._member.run)
        except PubSwapError as error:
            self._fault = error.detail


def as_json(status: MemberStatus) -> str:
    """An object with `member`, `run`, `daemon`, `rewards` and more; see docs/organisation.md."""
    shown = {
        *("id", "name", "state", "paused", "round", "waiting_for", "left_seconds"),
        *("latest", "best"),
    }
    run, daemon = status.run, status.daemon
    return json.dumps(
        {
            "member": status.member.name,
            "role": status.member.role,
            "run": None
            if run is None
            else run.model_dump(mode="json", include=shown) | {"rounds": run.settings.rounds},
            "coordinator_fault": status.fault,
            "running": status.process is not None,
            "process": status.process,
            "daemon": None
            if daemon is None
            else daemon.model_dump(mode="json") | {"left_seconds": daemon.left_seconds},
            "rewards": status.rewards,
            "held_out": [score.model_dump(mode="json") for score in status.held_out],
        },
        indent=2,
        ensure_ascii=False,
    )


def rendered(status: MemberStatus, now: datetime | None = None) -> RenderableType:
    run, member = status.run, status.member
    head = f"{member.name} in {member.run_name}"
    if run is not None:
        head += f": {state_text(run)}, round {run.round} of {run.settings.rounds}"
        head += f", about {duration_text(run.left_seconds)} left" if run.left_seconds else ""
    lines = [Text(head, "bold")]
    if status.fault is not None:
        lines.append(Text(f"The run's state is unknown: {status.fault}", "red"))
    if run is not None and run.waiting_for is not None:
        lines.append(Text(f"The operator must act: {run.waiting_for}", "yellow"))
    table = Table.grid(padding=(0, 2))
    for name, value in _rows(status, now or datetime.now(UTC)):
        table.add_row(name, Text(value))
    return Group(*lines, table)


def _rows(status: MemberStatus, now: datetime) -> Iterator[tuple[str, str]]:
    daemon, run = status.daemon, status.run
    if status.process is not None:
        yield "now", daemon.doing if daemon else "running"
    elif daemon is None:
        yield "daemon", "not running; it has done nothing here yet"
        if run is not None and not run.state.ended:
            client = status.member.role is Role.CLIENT
            start = "client start --data FILE, once client doctor finds nothing wrong"
            yield "next", f"pubswap {start if client else 'evaluate'}"
    else:
        ago = duration_text((now - daemon.at).total_seconds())
        yield "daemon", f"not running; last active {ago} ago, {daemon.at.astimezone():%F %T %Z}"
        yield "last", daemon.doing
        if run is not None and not run.state.ended:
            yield "next", "pubswap client start, with the same options: it continues from there"
    if daemon is not None and daemon.step:
        remaining = daemon.left_seconds
        end = (
            f", about {duration_text(remaining)} to the end of its steps"
            if remaining and status.process
            else ""
        )
        yield "step", f"{daemon.step} of {daemon.steps} in round {daemon.round}{end}"
    rewards = [reward for reward in status.rewards if reward is not None]
    if rewards:
        yield "own reward", f"{rewards[-1]:.3f}  {sparkline(rewards[-WIDTH:])}"
    if status.held_out:
        yield "held-out pass@1", held_out_text(status.held_out)
    if daemon is not None and daemon.tokens_per_second is not None:
        yield "tokens/s", f"{daemon.tokens_per_second:.0f}"
    if daemon is not None:
        sizes = size_text(daemon.sent_bytes), size_text(daemon.received_bytes)
        yield "bytes", "{} sent, {} received".format(*sizes)
    if run is not None and run.latest is not None and run.best is not None:
        best = f"; best {run.best.pass_at_1:.3f} after round {run.best.round}"
        yield "pass@1", f"{run.latest.pass_at_1:.3f} after round {run.latest.round}{best}"
