"""What is measured of one result: single figures, and series over the steps of the whole run."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from pubswap_protocol.messages import SwapSummary
from pubswap_simulation.reporting.section import Metric
from pubswap_simulation.results import Result

Series = Callable[[Result], dict[int, float]]


@dataclass(frozen=True)
class Measure:
    """A metric with its name for people; a share is shown in per cent."""

    key: str
    title: str
    of: Metric
    share: bool = True


def final(result: Result) -> float:
    """pass@1 of the last round."""
    return result.final


def best(result: Result) -> float:
    """pass@1 of the best round."""
    return result.best


def base(result: Result) -> float:
    """pass@1 before training."""
    return result.base


def drift_pairwise(result: Result) -> float | None:
    """Mean distance between pairs of clients at the rounds' ends; None for one client."""
    return _mean(drift_over_steps(result))


def drift_from_mean(result: Result) -> float | None:
    """Mean distance from the clients' mean at the rounds' ends; None for one client."""
    return _mean(drift_from_mean_over_steps(result))


def drift_at_end(result: Result) -> float | None:
    """Mean distance between pairs of clients at the last round's end."""
    series = drift_over_steps(result)
    return series[max(series)] if series else None


def replaced(result: Result) -> float | None:
    """alpha: the mean share of replaced responses, over public steps and clients."""
    return _mean(replaced_over_steps(result))


def replaced_change(result: Result) -> float | None:
    """Mean alpha of the last third of the public steps less that of the first third."""
    values = [share for _, share in sorted(replaced_over_steps(result).items())]
    third = len(values) // 3
    return fmean(values[-third:]) - fmean(values[:third]) if third else None


def pass_over_steps(result: Result) -> dict[int, float]:
    """pass@1 at each round's end, by step of the whole run; step 0 is the base model."""
    tau = result.run.settings.local_steps
    return {
        summary.round * tau: summary.evaluation.pass_at_1
        for summary in result.run.rounds
        if summary.evaluation
    }


def drift_over_steps(result: Result) -> dict[int, float]:
    """Pairwise drift at each round's end, by step of the whole run."""
    tau, clients = result.run.settings.local_steps, result.run.settings.clients
    return {
        summary.round * tau: summary.drift.pairwise
        for summary in result.run.rounds
        if summary.drift and clients > 1
    }


def drift_from_mean_over_steps(result: Result) -> dict[int, float]:
    """Drift from the mean at each round's end, by step of the whole run."""
    tau, clients = result.run.settings.local_steps, result.run.settings.clients
    return {
        summary.round * tau: summary.drift.from_mean
        for summary in result.run.rounds
        if summary.drift and clients > 1
    }


def replaced_over_steps(result: Result) -> dict[int, float]:
    """alpha of each public step, mean over clients, by step of the whole run."""
    return {
        step: fmean(swap.replaced_share.values())
        for step, swap in _swaps(result)
        if swap.replaced_share
    }


def replaced_by_client(result: Result) -> dict[str, float]:
    """alpha of each client, mean over the public steps that it took part in."""
    found: dict[str, list[float]] = {}
    for _, swap in _swaps(result):
        for client, share in swap.replaced_share.items():
            found.setdefault(client, []).append(share)
    return {client: fmean(shares) for client, shares in sorted(found.items())}


def rewards_over_steps(result: Result) -> dict[int, float]:
    """Mean reward of own responses at each local step 1, 2, ..., mean over clients."""
    series = list(result.rewards.values())
    steps = min((len(rewards) for rewards in series), default=0)
    return {step + 1: fmean(rewards[step] for rewards in series) for step in range(steps)}


def by_topic(result: Result) -> dict[str, float]:
    """Final pass@1 of each topic of the test set."""
    return result.evaluations[-1].by_topic


def _swaps(result: Result) -> list[tuple[int, SwapSummary]]:
    """Every exchange and its step in the whole run."""
    settings = result.run.settings
    return [
        ((summary.round - 1) * settings.local_steps + swap.swap * settings.swap.period, swap)
        for summary in result.run.rounds
        for swap in summary.swaps
    ]


def _mean(series: dict[int, float]) -> float | None:
    return fmean(series.values()) if series else None


FINAL = Measure("final", "Final checkpoint, pass@1", final)
BEST = Measure("best", "Best checkpoint, pass@1", best)
PAIRWISE = Measure(
    "drift_pairwise", "Drift between pairs of clients, mean of rounds", drift_pairwise, False
)
FROM_MEAN = Measure(
    "drift_from_mean", "Drift from the clients' mean, mean of rounds", drift_from_mean, False
)
AT_END = Measure("drift_at_end", "Drift between pairs of clients, last round", drift_at_end, False)
REPLACED = Measure("replaced", "Replaced share α, mean of public steps and clients", replaced)
MEASURES = (FINAL, BEST, PAIRWISE, FROM_MEAN, AT_END, REPLACED)
