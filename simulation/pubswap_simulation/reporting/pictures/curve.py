"""A mean with its interval at each step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pubswap_simulation.reporting.estimates import Estimate, estimate
from pubswap_simulation.reporting.metrics import Series
from pubswap_simulation.reporting.section import Cell

_TRUSTED = 3  # seeds


@dataclass(frozen=True)
class Curve:
    """The mean over the seeds at each step, and the ends of its interval.

    Intervals of fewer than three seeds are left to the tables: they would hide everything else.
    """

    steps: list[int]
    means: list[float]
    lows: list[float]
    highs: list[float]

    @classmethod
    def of(cls, points: Mapping[int, Estimate], scale: float = 100) -> "Curve":
        """A curve through estimates by step; `scale` 100 shows per cent."""
        values = list(points.values())
        return cls(
            steps=list(points),
            means=[scale * point.mean for point in values],
            lows=[scale * _end(point, point.low) for point in values],
            highs=[scale * _end(point, point.high) for point in values],
        )

    @property
    def error_bars(self) -> list[list[float]]:
        """matplotlib's `yerr`: the intervals' ends, below and above the means."""
        return [
            [mean - low for mean, low in zip(self.means, self.lows, strict=True)],
            [high - mean for mean, high in zip(self.means, self.highs, strict=True)],
        ]


def _end(point: Estimate, end: float | None) -> float:
    return point.mean if end is None or point.n < _TRUSTED else end


def curve(cell: Cell, series: Series, parts: int | None = None, scale: float = 100) -> Curve:
    """The curve over the steps that every seed has; clients that train alone are averaged.

    With `parts`, each seed is first smoothed by a running mean over 1/parts of its steps; the
    interval is that of the smoothed values.
    """
    by_seed = []
    for results in cell.values():
        curves = [series(result) for result in results]
        by_seed.append({step: fmean(one[step] for one in curves) for step in _common(curves)})
    if parts:
        by_seed = [smoothed(one, max(1, round(len(one) / parts))) for one in by_seed]
    points = {step: estimate([one[step] for one in by_seed]) for step in _common(by_seed)}
    return Curve.of(points, scale)


def smoothed(series: Mapping[int, float], window: int) -> dict[int, float]:
    """The running mean over `window` neighbours, fewer at the ends."""
    behind, ahead, values = (window - 1) // 2, window // 2, list(series.values())
    return {
        step: fmean(values[max(0, index - behind) : index + ahead + 1])
        for index, step in enumerate(series)
    }


def _common(all_series: Sequence[Mapping[int, float]]) -> list[int]:
    return sorted(set[int].intersection(*map(set, all_series))) if all_series else []
