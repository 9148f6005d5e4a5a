"""An organisation's view of its run, for a terminal or as JSON."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pubswap_client.operator.tables import state_text
from pubswap_client.organisation.report import MemberReport, held_out_text
from pubswap_protocol.command_line.amounts import duration_text
from pubswap_protocol.command_line.curves import block_curve
from pubswap_protocol.messages import Role

WIDTH = 60  # steps in the curve


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
            "run": run
            and run.model_dump(mode="json", include=shown) | {"rounds": run.settings.rounds},
            "coordinator_fault": report.fault,
            "running": report.process is not None,
            "process": report.process,
            "daemon": daemon
            and daemon.model_dump(mode="json") | {"left_seconds": daemon.left_seconds},
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
        client = report.member.role is Role.CLIENT  # an evaluator keeps no record of what it did
        yield "daemon", "not running; it has done nothing here yet" if client else "not running"
        if run is not None and not run.state.ended:
            start = "client start --data FILE, once client doctor finds nothing wrong"
            yield "next", f"pubswap {start if client else 'evaluate'}"
    else:
        ago = duration_text((now - daemon.at).total_seconds())
        yield "daemon", f"not running; last active {ago} ago, {daemon.at.astimezone():%F %T %Z}"
        yield "last", daemon.doing
        if run is not None and not run.state.ended:
            yield "next", "pubswap client start, with the same options: it continues from there"
    if daemon is not None and daemon.step:
        step = f"{daemon.step} of {daemon.steps} in round {daemon.round}"
        if daemon.left_seconds and report.process:
            step += f", about {duration_text(daemon.left_seconds)} to the end of its steps"
        yield "step", step
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
