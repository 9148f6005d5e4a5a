"""Runs and members as tables for a terminal, and the text of their cells."""

from collections.abc import Iterable, Sequence

from rich.table import Column, Table

from pubswap_protocol.command_line.amounts import duration_text, size_text
from pubswap_protocol.messages import MemberView, RoundSummary, RunView

FOLDED = 24  # characters of a name in a line


def runs_table(runs: list[RunView]) -> Table:
    ids = Column("id", no_wrap=True)  # other commands take it as an argument
    table = Table(ids, _names("name", runs), *_folded("state", "round", "model", "pass@1"))
    for run in runs:
        table.add_row(
            run.id,
            run.name,
            state_text(run),
            f"{run.round}/{run.settings.rounds}",
            run.model.source,
            f"{run.latest.pass_at_1:.3f}" if run.latest else "",
        )
    return table


def _folded(*headings: str) -> list[Column]:
    """Columns that a narrow terminal wraps, also within a word, and does not truncate."""
    return [Column(heading, overflow="fold") for heading in headings]


def _names(heading: str, named: Sequence[RunView | MemberView]) -> Column:
    """A column that a narrow terminal does not truncate, because other commands take the names.

    Names that are too long to leave other columns room are folded.
    """
    short = all(len(each.name) <= FOLDED for each in named)
    return Column(heading, no_wrap=short, max_width=FOLDED, overflow="fold")


def state_text(run: RunView) -> str:
    return f"{run.state} (paused)" if run.paused else str(run.state)


def rounds_table(rounds: Iterable[RoundSummary], start: str = "base") -> Table:
    """One line a round; round 0 is the base model, or what training starts from instead."""
    figures = "round", "updates", "pass@1", "reward", "replaced", "drift", "up", "down"
    table = Table(*_folded(*figures))
    for summary in rounds:
        evaluation, drift = summary.evaluation, summary.drift
        reward = summary.means.reward if summary.means else None
        table.add_row(
            str(summary.round) if summary.round else start,
            str(summary.updates) if summary.round else "",
            evaluation.figures if evaluation else "",
            f"{reward:.3f}" if reward is not None else "",
            str(sum(public_step.replaced for public_step in summary.public_steps))
            if summary.round
            else "",
            f"{drift.pairwise:.3f}" if drift else "",
            size_text(summary.traffic.up),
            size_text(summary.traffic.down),
        )
    return table


def members_table(members: list[MemberView]) -> Table:
    figures = "role", "active", "last seen", "round", "step", "reward", "tokens/s"
    table = Table(_names("member", members), *_folded(*figures))
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
    if member.suspended:
        return "suspended"
    if member.away:
        return f"away: {member.away.code}"
    if not member.accepted:
        return "not started"
    if member.joining:
        return "joins next round"
    if member.progress and member.progress.held:
        return member.progress.held
    return f"yes, but {doubt}" if (doubt := doubt_text(member)) else "yes"


def doubt_text(member: MemberView) -> str:
    """Doubts about the responses that a member donates; empty if there are none."""
    sampling = member.sampling
    if sampling is None or not sampling.doubting:
        return "unverified" if member.unverified else ""
    text = f"doubted by {sampling.doubting} of {sampling.judging}"
    return f"{text}, no longer donates" if sampling.excluded else text


def age_text(seconds: float | None) -> str:
    """How long ago, for people: 3 s ago, 2 d ago; in red from an hour on."""
    if seconds is None:
        return "never"
    text = f"{duration_text(seconds)} ago"
    return f"[red]{text}[/red]" if seconds >= 3600 else text
