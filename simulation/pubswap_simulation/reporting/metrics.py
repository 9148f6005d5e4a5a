"""Measures of one result: single figures, and series over the steps of the whole run."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean

from pubswap_protocol.messages import SwapSummary
from pubswap_simulation.reporting.section import Metric
from pubswap_simulation.results import Result

Series = Callable[[Result], dict[int, float]]


@dataclass(frozen=True)
class Measure:
    """A metric with a human-readable title; a share is shown in per cent."""

    key: str
    title: str
    of: Metric
    share: bool = True


def pass_over_steps(result: Result) -> dict[int, float]:
    """pass@1 at each round's end, by step of the whole run; step 0 is the base model."""
    tau = result.run.settings.local_steps
    return {
        summary.round * tau: summary.evaluation.pass_at_1
        for summary in result.run.rounds
        if summary.evaluation
    }


def drift_over_steps(result: Result, distance: str = "pairwise") -> dict[int, float]:
    """Drift at each round's end, by step of the whole run; empty for a single client."""
    tau, clients = result.run.settings.local_steps, result.run.settings.clients
    return {
        summary.round * tau: getattr(summary.drift, distance)
        for summary in result.run.rounds
        if summary.drift and clients > 1
    }


def replaced_over_steps(result: Result) -> dict[int, float]:
    """alpha of each public step, mean over clients, by step of the whole run."""
    return {
        step: fmean(exchange.replaced_share.values())
        for step, exchange in _exchanges(result)
        if exchange.replaced_share
    }


def replaced_change(result: Result) -> float | None:
    """Mean alpha of the last third of the public steps less that of the first third."""
    values = [share for _, share in sorted(replaced_over_steps(result).items())]
    third = len(values) // 3
    return fmean(values[-third:]) - fmean(values[:third]) if third else None


def replaced_by_client(result: Result) -> dict[str, float]:
    """alpha of each client, mean over the public steps that it took part in."""
    by_client: dict[str, list[float]] = defaultdict(list)
    for _, exchange in _exchanges(result):
        for client, share in exchange.replaced_share.items():
            by_client[client].append(share)
    return {client: fmean(shares) for client, shares in sorted(by_client.items())}


def rewards_over_steps(result: Result) -> dict[int, float]:
    """Mean reward of own responses at each local step 1, 2, ..., mean over clients."""
    series = list(result.rewards.values())
    steps = min((len(rewards) for rewards in series), default=0)
    return {step + 1: fmean(rewards[step] for rewards in series) for step in range(steps)}


def rewards_of(client: str, result: Result) -> dict[int, float]:
    """Mean reward of a client's own responses at each local step 1, 2, ..."""
    return dict(enumerate(result.rewards.get(client, ()), start=1))


def on_own_topics(result: Result) -> dict[str, float]:
    """Final pass@1 on the test set by client, with topics weighted as in its own problems.

    Empty for the pooled client, whose topics are no organisation's own.
    """
    scores, means = result.evaluations[-1].by_topic, {}
    for client, counts in result.topics.items():
        tested = {topic: count for topic, count in counts.items() if topic in scores}
        if tested and result.members != "pooled":
            right = sum(count * scores[topic] for topic, count in tested.items())
            means[client] = right / sum(tested.values())
    return means


def donated_probability(result: Result) -> dict[str, float]:
    """Mean probability of donated tokens under their receiver's own policy, by round."""
    return {f"round {one.round}": one.probability for one in result.donated}


def donated_clip_share(result: Result) -> dict[str, float]:
    """The share of donated tokens that the clip stops, by round."""
    return {f"round {one.round}": one.clip_share for one in result.donated}


def _exchanges(result: Result) -> list[tuple[int, SwapSummary]]:
    """Every exchange and its step in the whole run."""
    tau = result.run.settings.local_steps
    return [
        ((summary.round - 1) * tau + _step(result, swap.swap), swap)
        for summary in result.run.rounds
        for swap in summary.swaps
    ]


def _step(result: Result, swap: int) -> int:
    """The local step of a round's public step; older runs could have them all first or last."""
    exchange, tau = result.run.settings.exchange, result.run.settings.local_steps
    period = exchange.period if exchange else tau
    moved = {"early": swap, "late": tau - tau // period + swap}
    return moved.get(str(result.setting.get("swap.schedule")), swap * period)


def _mean(series: dict[int, float]) -> float | None:
    return fmean(series.values()) if series else None


def _last(series: dict[int, float]) -> float | None:
    return series[max(series)] if series else None


def _drift(key: str, title: str, of: Callable[[dict[int, float]], float | None]) -> Measure:
    distance = "from_mean" if key == "drift_from_mean" else "pairwise"
    return Measure(key, title, lambda result: of(drift_over_steps(result, distance)), share=False)


FINAL = Measure("final", "Final checkpoint, pass@1", attrgetter("final"))
BEST = Measure("best", "Best checkpoint, pass@1", attrgetter("best"))
PAIRWISE = _drift("drift_pairwise", "Drift between pairs of clients, mean of rounds", _mean)
MEASURES = (
    FINAL,
    BEST,
    PAIRWISE,
    _drift("drift_from_mean", "Drift from the clients' mean, mean of rounds", _mean),
    _drift("drift_at_end", "Drift between pairs of clients, last round", _last),
    Measure(
        "replaced",
        "Replaced share α, mean of public steps and clients",
        lambda result: _mean(replaced_over_steps(result)),
    ),
)
