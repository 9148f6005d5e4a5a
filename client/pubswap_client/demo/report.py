"""A run's results: a table, `summary.json`, and a plot."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pubswap_client import plots
from pubswap_protocol.command_line.amounts import size_text
from pubswap_protocol.messages import WholeRun


@dataclass(frozen=True)
class Summary:
    """The figures of `summary.json`."""

    base_pass_at_1: float
    final_pass_at_1: float
    best_pass_at_1: float
    rounds: int
    clients: int
    public_steps: int
    responses_replaced: int
    bytes_up: int
    bytes_down: int
    seconds: float
    method: str
    strategy: str
    seed: int
    test_problems: int
    full_fine_tuning_bytes_each_way: int
    pass_at_1_by_round: list[float]
    pass_at_1_by_topic: dict[str, list[float]]


def summarise(run: WholeRun, seconds: float) -> Summary:
    """The figures of a complete run; the first evaluation is the base model's."""
    done = [summary.evaluation for summary in run.rounds if summary.evaluation]
    scores = [evaluation.pass_at_1 for evaluation in done]
    clients = max(summary.updates for summary in run.rounds)
    public_steps = [public_step for summary in run.rounds for public_step in summary.public_steps]
    return Summary(
        base_pass_at_1=scores[0],
        final_pass_at_1=scores[-1],
        best_pass_at_1=max(scores[1:]),
        rounds=len(scores) - 1,
        clients=clients,
        public_steps=len(public_steps),
        responses_replaced=sum(public_step.replaced for public_step in public_steps),
        bytes_up=sum(summary.traffic.up for summary in run.rounds),
        bytes_down=sum(summary.traffic.down for summary in run.rounds),
        seconds=round(seconds, 1),
        method=run.settings.method.name,
        strategy=run.settings.exchange.strategy.name if run.settings.exchange else "none",
        seed=run.settings.seed,
        test_problems=done[0].problems,
        full_fine_tuning_bytes_each_way=4 * run.model.parameters * clients * (len(scores) - 1),
        pass_at_1_by_round=scores,
        pass_at_1_by_topic={
            topic: [evaluation.by_topic[topic] for evaluation in done]
            for topic in sorted(done[0].by_topic)
        },
    )


def print_report(run: WholeRun, summary: Summary, console: Console) -> None:
    """Print pass@1 by topic and round, replaced responses, and bytes next to full fine-tuning's."""
    console.print(_scores_table(run, summary))
    gain = summary.final_pass_at_1 - summary.base_pass_at_1
    console.print(
        f"pass@1 {summary.base_pass_at_1:.3f} → {summary.final_pass_at_1:.3f} "
        f"({gain:+.3f}; best {summary.best_pass_at_1:.3f}) on {summary.test_problems} problems, "
        f"{summary.rounds} rounds, {summary.clients} clients, {summary.seconds:.0f} s"
    )
    console.print(
        f"public steps {summary.public_steps}, responses replaced {summary.responses_replaced}"
    )
    full = summary.full_fine_tuning_bytes_each_way
    console.print(
        f"bytes up {size_text(summary.bytes_up)}, down {size_text(summary.bytes_down)}; "
        f"full fine-tuning would send {size_text(full)} each way"
    )


def _scores_table(run: WholeRun, summary: Summary) -> Table:
    table = Table("topic", title="pass@1 after each round")
    for round_ in range(summary.rounds + 1):
        table.add_column(str(round_) if round_ else "base", justify="right")
    for topic, scores in summary.pass_at_1_by_topic.items():
        table.add_row(topic, *(f"{score:.2f}" for score in scores))
    table.add_section()
    table.add_row("all", *(f"{score:.3f}" for score in summary.pass_at_1_by_round), style="bold")
    replaced = {
        s.round: sum(public_step.replaced for public_step in s.public_steps) for s in run.rounds
    }
    drift = {s.round: s.drift.pairwise for s in run.rounds if s.drift}
    rounds = range(1, summary.rounds + 1)
    table.add_row("responses replaced", "", *(str(replaced.get(r, 0)) for r in rounds))
    table.add_row("drift between clients", "", *(f"{drift.get(r, 0.0):.2f}" for r in rounds))
    return table


def plot_curve(summary: Summary, path: Path) -> None:
    """Draw pass@1 over rounds, by topic and overall, as a PNG."""
    from matplotlib.figure import Figure

    rounds = range(len(summary.pass_at_1_by_round))
    with plots.look():
        figure = Figure(figsize=(7, 4.2))
        axes = figure.add_subplot()
        for topic, scores in summary.pass_at_1_by_topic.items():
            axes.plot(rounds, scores, linewidth=1, alpha=0.6, label=topic)
        scores = summary.pass_at_1_by_round
        axes.plot(rounds, scores, "o-", color="black", linewidth=2.5, label="all topics")
        name = summary.method + (f", {summary.strategy}" if summary.method == "pubswap" else "")
        axes.set(xlabel="round (0 = base model)", ylabel="pass@1", ylim=(0, 1), title=name)
        axes.set_xticks(list(rounds))
        axes.legend(ncols=2)
        plots.save(figure, path)
