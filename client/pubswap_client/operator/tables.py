"""Runs and members as tables for a terminal."""

from collections.abc import Iterable

from rich.table import Column, Table

from pubswap_protocol.messages import MemberView, RoundSummary, RunView


def runs_table(runs: list[RunView]) -> Table:
    table = Table("id", _whole("name"), "state", "round", "method", "model", "pass@1")
    for run in runs:
        table.add_row(
            run.id,
            run.name,
            state_text(run),
            f"{run.round}/{run.settings.rounds}",
            run.settings.method,
            run.model.source,
            f"{run.latest.pass_at_1:.3f}" if run.latest else "",
        )
    return table


def _whole(heading: str) -> Column:
    """A column that a narrow terminal does not cut: what it has goes into other commands."""
    return Column(heading, no_wrap=True, overflow="fold")


def state_text(run: RunView) -> str:
    return f"{run.state} (paused)" if run.paused else str(run.state)


def rounds_table(rounds: Iterable[RoundSummary]) -> Table:
    """One line a round; round 0 is the base model."""
    table = Table("round", "updates", "pass@1", "replaced", "drift", "up", "down")
    for summary in rounds:
        evaluation, drift = summary.evaluation, summary.drift
        table.add_row(
            str(summary.round) if summary.round else "base",
            str(summary.updates) if summary.round else "",
            f"{evaluation.pass_at_1:.3f}" if evaluation else "",
            str(sum(swap.replaced for swap in summary.swaps)) if summary.round else "",
            f"{drift.pairwise:.3f}" if drift else "",
            size_text(summary.traffic.up),
            size_text(summary.traffic.down),
        )
    return table


def members_table(members: list[MemberView]) -> Table:
    """One line a member: what it does now."""
    table = Table(
        _whole("member"), "role", "active", "last seen", "round", "step", "reward", "tokens/s"
    )
    for member in members:
        progress = member.progress
        table.add_row(
            member.name,
            member.role,
            _activity(member),
            age_text(member.unseen_seconds),
            str(progress.round) if progress else "",
            f"{progress.step}/{progress.steps}" if progress else "",
            f"{progress.reward:.3f}" if progress and progress.reward is not None else "",
            f"{progress.tokens_per_second:.0f}" if progress and progress.tokens_per_second else "",
        )
    return table


def _activity(member: MemberView) -> str:
    if not member.active:
        return "revoked"
    return "suspended" if member.suspended else "yes"


def age_text(seconds: float | None) -> str:
    """How long ago, for people: 3 s ago, 2 d ago; in red from an hour on."""
    if seconds is None:
        return "never"
    red = seconds >= 3600
    number, unit = seconds, "s"
    for size, larger in ((60, "min"), (60, "h"), (24, "d")):
        if number < size:
            break
        number, unit = number / size, larger
    text = f"{number:.0f} {unit} ago"
    return f"[red]{text}[/red]" if red else text


def size_text(size: float) -> str:
    """Bytes for people: 12.3 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
