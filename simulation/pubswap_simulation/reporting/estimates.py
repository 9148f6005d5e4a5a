"""A mean over seeds with its 95 % interval, and a difference paired by seed."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean, stdev
from typing import ClassVar

from mpmath import mp
from pydantic import BaseModel

ROUNDING = 1e-12  # less than the effect of a single problem


class Estimate(BaseModel, frozen=True):
    """A mean over n seeds with the ends of its interval; one seed has none."""

    sign: ClassVar[str] = ""  # "+" where means are printed with their sign

    n: int
    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def half_width(self) -> float | None:
        return None if self.low is None else self.mean - self.low

    @property
    def count(self) -> str:
        """n."""
        return str(self.n)

    def text(self, share: bool) -> str:
        """`47.3 ± 1.2 (5)`, in per cent for a share; `47.3 (1)` for one seed."""
        mean, half = self.number_text(self.mean, share), self.half_width
        interval = "" if half is None else f" ± {self.number_text(half, share, sign='')}"
        return f"{mean}{interval} ({self.count})"

    def number_text(self, value: float, share: bool, sign: str | None = None) -> str:
        """A figure as precise as the interval: with one decimal in per cent, otherwise with two
        significant digits of the interval."""
        width = abs(self.mean / 10 if self.half_width is None else self.half_width)
        digits = 2 if width == 0 else min(6, max(0, 1 - math.floor(math.log10(width))))
        sign = self.sign if sign is None else sign
        return f"{100 * value:{sign}.1f}" if share else f"{value:{sign}.{digits}f}"


class Difference(Estimate):
    """A mean difference over the n seeds that both sides have, and the count of each sign."""

    sign: ClassVar[str] = "+"

    above: int
    equal: int
    below: int

    @property
    def signs(self) -> str:
        """`4/0/1`: how often it is above, at and below zero."""
        return f"{self.above}/{self.equal}/{self.below}"

    @property
    def count(self) -> str:
        """`5: 4/0/1`, n and the signs, as in `+1.2 ± 0.8 (5: 4/0/1)`."""
        return f"{self.n}: {self.signs}"

    def interval_text(self, share: bool) -> str:
        """`+0.3 to +1.2`; empty for one seed."""
        if self.low is None or self.high is None:
            return ""
        return " to ".join(self.number_text(end, share) for end in (self.low, self.high))


def estimate(values: Sequence[float]) -> Estimate:
    """The mean and its Student t interval; raises ValueError for no values."""
    mean = fmean(values)
    if len(values) < 2:
        return Estimate(n=1, mean=mean)
    half = t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Estimate(n=len(values), mean=mean, low=mean - half, high=mean + half)


def paired(treatment: Mapping[int, float], baseline: Mapping[int, float]) -> Difference | None:
    """treatment - baseline by seed, with the paired t interval; None if no seed is in both."""
    differences = [
        treatment[seed] - baseline[seed] for seed in sorted(treatment.keys() & baseline.keys())
    ]
    if not differences:
        return None
    mean = estimate(differences)
    return Difference(
        **mean.model_dump(),
        above=sum(value > ROUNDING for value in differences),
        equal=sum(abs(value) <= ROUNDING for value in differences),
        below=sum(value < -ROUNDING for value in differences),
    )


@cache
def t_quantile(freedom: int) -> float:
    """t with P(|T| <= t) = 0.95 for Student's T."""

    def beyond(t: float) -> float:
        return _p_value(t, freedom) - 0.05

    # From the normal distribution's 1.96 to one degree of freedom's 12.71.
    return float(mp.findroot(beyond, (1.9, 12.8), solver="anderson"))


def _p_value(t: float, freedom: int) -> float:
    """P(|T| > t): the regularised incomplete beta I_x(v / 2, 1 / 2) at x = v / (v + t^2)."""
    x = freedom / (freedom + t * t)
    return float(mp.betainc(freedom / 2, 0.5, 0, x, regularized=True))


def p_value(estimate: Estimate) -> float | None:
    """Two-sided p-value of Student's t test against zero; None if the interval has no width."""
    half = estimate.half_width
    if half is None or half <= ROUNDING:
        return None
    freedom = estimate.n - 1
    return _p_value(estimate.mean / half * t_quantile(freedom), freedom)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number by Holm's method; keeps their order.

    The smallest is multiplied by their number m, the next by m - 1, ...; none is below one that
    was smaller, and none above 1.
    """
    corrected, largest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
