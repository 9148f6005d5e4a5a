"""A series over steps, averaged over seeds: what is drawn as a line with its band."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pubswap_simulation.reporting.estimates import estimate
from pubswap_simulation.reporting.metrics import Series
from pubswap_simulation.reporting.section import Cell


@dataclass(frozen=True)
class Curve:
    """At each step the mean over n seeds, and the ends of its interval (the mean for n = 1)."""

    n: int
    steps: list[int]
    means: list[float]
    lows: list[float]
    highs: list[float]

    def smoothed(self, window: int) -> "Curve":
        """Each value the mean over `window` neighbours, of fewer at the ends."""
        means, lows, highs = (
            _smoothed(values, window) for values in (self.means, self.lows, self.highs)
        )
        return Curve(self.n, self.steps, means, lows, highs)


def curve(cell: Cell, series: Series) -> Curve:
    """The steps that every seed has; of clients that train alone, the mean counts."""
    by_seed = [_mean([series(result) for result in results]) for results in cell.values()]
    steps = _common(by_seed)
    points = [estimate([one[step] for one in by_seed]) for step in steps]
    return Curve(
        n=len(by_seed),
        steps=steps,
        means=[point.mean for point in points],
        lows=[point.mean if point.low is None else point.low for point in points],
        highs=[point.mean if point.high is None else point.high for point in points],
    )


def _mean(all_series: Sequence[Mapping[int, float]]) -> dict[int, float]:
    return {step: fmean(series[step] for series in all_series) for step in _common(all_series)}


def _common(all_series: Sequence[Mapping[int, float]]) -> list[int]:
    if not all_series:
        return []
    return sorted(set[int].intersection(*(set(series) for series in all_series)))


def _smoothed(values: Sequence[float], window: int) -> list[float]:
    before, after = (window - 1) // 2, window // 2
    return [
        fmean(values[max(0, place - before) : place + after + 1]) for place in range(len(values))
    ]
