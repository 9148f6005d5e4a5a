"""What the terminal shows when runs are done."""

from collections.abc import Container, Iterable, Sequence

from rich.table import Table

from pubswap_simulation.order import Order
from pubswap_simulation.results import RESULT, Result


def run_table(result: Result) -> Table:
    """A run, round by round."""
    table = Table("round", "pass@1", "reward", "drift", "replaced", title=f"{result.recipe}")
    settings = result.run.settings
    for summary in result.run.rounds:
        first = (summary.round - 1) * settings.local_steps
        rewards = [
            reward
            for steps in result.rewards.values()
            for reward in steps[first : first + settings.local_steps]
        ]
        began = summary.round > 0
        table.add_row(
            str(summary.round) if began else "base",
            f"{summary.evaluation.pass_at_1:.3f}" if summary.evaluation else "",
            f"{_mean(rewards):.3f}" if began else "",
            f"{summary.drift.from_mean:.3g}" if summary.drift else "",
            str(sum(swap.replaced for swap in summary.swaps)) if summary.swaps else "",
        )
    return table


def sweep_table(orders: Iterable[Order], failed: Container[str]) -> Table:
    """Each run of a sweep: its pass@1, or that there is none; `failed` holds keys."""
    table = Table("run", "base", "final", "best", "seconds")
    for order in orders:
        if order.done:
            result = Result.model_validate_json((order.folder / RESULT).read_bytes())
            scores = (result.base, result.final, result.best)
            figures = [f"{score:.3f}" for score in scores] + [f"{result.seconds:.0f}"]
        else:
            figures = ["[red]failed" if order.key in failed else "[dim]to do", "", "", ""]
        table.add_row(order.title, *figures)
    return table


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
