"""An organisation's view of its run, from the state folder and the coordinator."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.operator.tables import state_text
from pubswap_client.organisation.report import MemberReport, held_out_text
from pubswap_client.state.membership import StoredMembership
from pubswap_protocol.command_line.amounts import duration_text
from pubswap_protocol.command_line.curves import block_curve
from pubswap_protocol.errors import PubSwapError
from pubswap_protocol.messages import Role, RunView

WIDTH = 60  # steps in the curve
ASK_SECONDS = 30.0  # between requests to the coordinator, while nothing happens here


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

    def look(self) -> MemberReport:
        """The report now; if the coordinator does not answer, from the state folder alone."""
        report = MemberReport.read(self._state, self._member)
        activity = report.process, report.daemon.round if report.daemon else 0
        if activity != self._asked or time.monotonic() - self._asked_at >= ASK_SECONDS:
            self._ask()
            self._asked, self._asked_at = activity, time.monotonic()
        return replace(report, run=self._run, fault=self._fault)

    def _ask(self) -> None:
        self._run, self._fault = None, None
        try:
            self._run = self._api.run(self._member.run)
        except PubSwapError as error:
            self._fault = error.detail


def as_json(report: MemberReport) -> str:
    """An object with `member`, `run`, `daemon`, `rewards` and more; see docs/organisation.md."""
    shown = {
        *("id", "name", "state", "paused", "round", "waiting_for", "left_seconds"),
        *("latest", "best"),
    }
    run, daemon = report.run, report.daemon
    return json.dumps(
        {
            "member": report.member.name,
            "role": report.member.role,
            "run": None
            if run is None
            else run.model_dump(mode="json", include=shown) | {"rounds": run.settings.rounds},
            "coordinator_fault": report.fault,
            "running": report.process is not None,
            "process": report.process,
            "daemon": None
            if daemon is None
            else daemon.model_dump(mode="json") | {"left_seconds": daemon.left_seconds},
            "rewards": report.rewards,
            "held_out": [score.model_dump(mode="json") for score in report.held_out],
        },
        indent=2,
        ensure_ascii=False,
    )


def rendered(report: MemberReport, now: datetime | None = None) -> RenderableType:
    run, member = report.run, report.member
    head = f"{member.name} in {member.run_name}"
    if run is not None:
        head += f": {state_text(run)}, round {run.round} of {run.settings.rounds}"
        head += f", about {duration_text(run.left_seconds)} left" if run.left_seconds else ""
    lines = [Text(head, "bold")]
    if report.fault is not None:
        lines.append(Text(f"The run's state is unknown: {report.fault}", "red"))
    if run is not None and run.waiting_for is not None:
        lines.append(Text(f"The operator must act: {run.waiting_for}", "yellow"))
    table = Table.grid(padding=(0, 2))
    for name, value in _rows(report, now or datetime.now(UTC)):
        table.add_row(name, Text(value))
    return Group(*lines, table)


def _rows(report: MemberReport, now: datetime) -> Iterator[tuple[str, str]]:
    daemon, run = report.daemon, report.run
    if report.process is not None:
        yield "now", daemon.doing if daemon else "running"
    elif daemon is None:
        yield "daemon", "not running; it has done nothing here yet"
        if run is not None and not run.state.ended:
            client = report.member.role is Role.CLIENT
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
            if remaining and report.process
            else ""
        )
        yield "step", f"{daemon.step} of {daemon.steps} in round {daemon.round}{end}"
    rewards = [reward for reward in report.rewards if reward is not None]
    if rewards:
        yield "own reward", f"{rewards[-1]:.3f}  {block_curve(rewards[-WIDTH:])}"
    if report.held_out:
        yield "held-out pass@1", held_out_text(report.held_out)
    if daemon is not None and daemon.tokens_per_second is not None:
        yield "tokens/s", f"{daemon.tokens_per_second:.0f}"
    if report.bytes_text is not None:
        yield "bytes", report.bytes_text
    if run is not None and run.latest is not None and run.best is not None:
        best = f"; best {run.best.pass_at_1:.3f} after round {run.best.round}"
        yield "pass@1", f"{run.latest.pass_at_1:.3f} after round {run.latest.round}{best}"
