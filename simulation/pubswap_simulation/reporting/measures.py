"""Measures of one result: single figures, and series over the steps of the whole run."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from statistics import fmean

from pubswap_simulation.results import DonatedTokens, Result

Metric = Callable[[Result], float | None]
Series = dict[int, float]  # by step of the whole run, 1, 2, ...; 0 is the base model


@dataclass(frozen=True)
class Measure:
    """A figure of a result, or None if it has none; a share is shown in per cent.

    `base` is the base model's figure. `name` is the topic or the client whose figure it is.
    """

    key: str
    title: str
    of: Metric
    base: Metric = lambda result: None
    share: bool = True
    name: str = ""


def pass_at_1(result: Result) -> Series:
    """pass@1 at each round's end."""
    tau = result.run.settings.local_steps
    return {
        summary.round * tau: summary.evaluation.pass_at_1
        for summary in result.run.rounds
        if summary.evaluation
    }


def drift(result: Result) -> Series:
    """The drift between pairs of clients at each round's end; empty for a single client."""
    tau, clients = result.run.settings.local_steps, result.run.settings.clients
    return {
        summary.round * tau: summary.drift.pairwise
        for summary in result.run.rounds
        if summary.drift and clients > 1
    }


def replaced(result: Result) -> Series:
    """alpha of each public step, mean over clients."""
    exchange, tau = result.run.settings.exchange, result.run.settings.local_steps
    period = exchange.period if exchange else tau
    return {
        (summary.round - 1) * tau + public_step.public_step * period: fmean(
            public_step.replaced_share.values()
        )
        for summary in result.run.rounds
        for public_step in summary.public_steps
        if public_step.replaced_share
    }


def rewards(result: Result) -> Series:
    """Mean reward of own responses at each step, mean over clients."""
    steps = zip(*result.rewards.values(), strict=False)
    return {step: fmean(of_clients) for step, of_clients in enumerate(steps, start=1)}


def _mean(series: Callable[[Result], Series], result: Result) -> float | None:
    values = series(result).values()
    return fmean(values) if values else None


def _change(series: Callable[[Result], Series], result: Result) -> float | None:
    """The mean of the last third of the steps less that of the first."""
    values = [value for _, value in sorted(series(result).items())]
    third = len(values) // 3
    return fmean(values[-third:]) - fmean(values[:third]) if third else None


def _donated(figure: Callable[[DonatedTokens], float], result: Result) -> float | None:
    tokens = sum(one.tokens for one in result.donated)
    return sum(one.tokens * figure(one) for one in result.donated) / tokens if tokens else None


FINAL = Measure("final", "Final checkpoint, pass@1", attrgetter("final"), attrgetter("base"))
BEST = Measure("best", "Best checkpoint, pass@1", attrgetter("best"), attrgetter("base"))
DRIFT = Measure(
    "drift_pairwise",
    "Drift between pairs of clients (L2), mean of rounds",
    partial(_mean, drift),
    share=False,
)
REPLACED = Measure(
    "replaced", "Replaced share α, mean of public steps and clients", partial(_mean, replaced)
)
REPLACED_CHANGE = Measure("replaced_change", "Change of α", partial(_change, replaced))
MEASURES = (
    FINAL,
    BEST,
    DRIFT,
    REPLACED,
    Measure(
        "donated_probability",
        "Probability of donated tokens under their receiver's own policy, before the step",
        partial(_donated, attrgetter("probability")),
    ),
    Measure(
        "donated_clip_share",
        "Share of donated tokens that the clip stops",
        partial(_donated, attrgetter("clip_share")),
    ),
)


def topics(results: Iterable[Result]) -> list[Measure]:
    """Final pass@1 on each topic that any of the results has."""

    def on(topic: str, evaluation: int) -> Metric:
        return lambda result: result.evaluations[evaluation].by_topic.get(topic)

    names = {name for result in results for name in result.evaluations[-1].by_topic}
    title = "Final pass@1 by topic"
    return [Measure("topic", title, on(name, -1), on(name, 0), name=name) for name in sorted(names)]


def own_topics(results: Iterable[Result]) -> list[Measure]:
    """Final pass@1 for each client, with topics weighted as in its own problems."""
    names = {name for result in results for name in result.topics}
    title = "Final pass@1 on each client's own topics"
    return [
        Measure("own_topics", title, partial(_on_own_topics, name), name=name)
        for name in sorted(names)
    ]


def _on_own_topics(client: str, result: Result) -> float | None:
    """None for the pooled client, whose topics are no organisation's own."""
    scores = result.evaluations[-1].by_topic
    tested = {t: n for t, n in result.topics.get(client, {}).items() if t in scores}
    if not tested or result.members == "pooled":
        return None
    return sum(n * scores[topic] for topic, n in tested.items()) / sum(tested.values())
