"""Live progress of a run: rounds, every member's steps, pass@1, bytes."""

import time
from collections.abc import Callable
from statistics import fmean

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.operator.tables import members_table
from pubswap_protocol.command_line.amounts import duration_text, size_text
from pubswap_protocol.command_line.progress_bar import LogThrottle, left_text
from pubswap_protocol.errors import WrongState
from pubswap_protocol.messages import MemberView, RunState, WholeRun

POLL_SECONDS = 0.5


def evaluated(run: WholeRun) -> list[float]:
    """pass@1 of round 0 (base), 1, ... up to the first round without an evaluation."""
    scores = []
    for summary in run.rounds:
        if summary.evaluation is None:
            break
        scores.append(summary.evaluation.pass_at_1)
    return scores


def _status_line(run: WholeRun) -> str:
    scores = " → ".join(f"{score:.3f}" for score in evaluated(run)) or "…"
    replaced = sum(
        public_step.replaced for summary in run.rounds for public_step in summary.public_steps
    )
    up = sum(summary.traffic.up for summary in run.rounds)
    down = sum(summary.traffic.down for summary in run.rounds)
    return (
        f"round {run.round}/{run.settings.rounds} {run.state}  pass@1 {scores}  "
        f"replaced {replaced}  up {size_text(up)}  down {size_text(down)}"
    )


def watch_run(
    api: CoordinatorClient, run: str, console: Console, check: Callable[[], None]
) -> WholeRun:
    """Show the run until it is complete; `check` may raise when something has failed.

    On a terminal the display is live. Elsewhere a line is printed whenever a round is evaluated,
    and between them at most one every 15 s and at least one a minute.
    """
    columns = (TextColumn("local steps"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console)
    view = api.whole_run(run)
    rounds, tau = view.settings.rounds, view.settings.local_steps
    total, began = rounds * tau * len(_clients(view)), time.monotonic()
    task = bar.add_task("", total=total)
    shown, throttle = 0, LogThrottle()
    first, before = began, 0  # when the first steps were seen, and how many
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while True:
            for round_, score in list(enumerate(evaluated(view)))[shown:]:
                console.print(f"{f'round {round_}' if round_ else 'base':8} pass@1 {score:.3f}")
            shown = len(evaluated(view))
            if view.state is RunState.FINISHED and shown == rounds + 1:
                return view
            if view.state is RunState.CANCELLED:
                raise WrongState("The run was cancelled.")
            check()
            done = [m.progress for m in _clients(view) if m.progress]
            steps = sum((p.round - 1) * tau + p.step for p in done)
            bar.update(task, completed=steps)
            if not before:
                first, before = time.monotonic(), steps
            live.update(Group(_status_line(view), bar, members_table(view.members)))
            if not console.is_terminal and throttle.due(steps):
                rewards = [p.reward for p in done if p.reward is not None]
                parts = (
                    f"step {steps}/{total}",
                    duration_text(time.monotonic() - began),
                    f"reward {fmean(rewards):.3f}" if rewards else "",
                    _status_line(view),
                    # The members' start does not count.
                    left_text(time.monotonic() - first, steps - before, total - steps),
                )
                console.print("  ".join(filter(None, parts)), soft_wrap=True)
                throttle.printed(steps)
            time.sleep(POLL_SECONDS)
            view = api.whole_run(run)


def _clients(run: WholeRun) -> list[MemberView]:
    return [member for member in run.members if member.role == "client"]
