"""Runs and members as tables for a terminal."""

from collections.abc import Iterable

from rich.table import Table

from pubswap_protocol.messages import MemberView, RoundSummary, RunView


def runs_table(runs: list[RunView]) -> Table:
    """One line a run."""
    table = Table("id", "name", "state", "round", "method", "model", "pass@1")
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


def state_text(run: RunView) -> str:
    """The state, and whether the run is paused."""
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
    table = Table("member", "role", "active", "last seen", "round", "step", "reward", "tokens/s")
    for member in members:
        progress = member.progress
        table.add_row(
            member.name,
            member.role,
            _activity(member),
            f"{member.last_seen:%H:%M:%S}" if member.last_seen else "never",
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


def size_text(size: float) -> str:
    """Bytes for people: 12.3 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
