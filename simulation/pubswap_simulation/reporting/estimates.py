"""A mean over seeds with its 95 % interval, and a difference that is paired by seed."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean, stdev

from mpmath import mp  # type: ignore[import-untyped]
from pydantic import BaseModel, ConfigDict

LEVEL = 0.95
ROUNDING = 1e-12  # below what one problem more or less can make


class Estimate(BaseModel):
    """A mean over n seeds; one seed has no interval."""

    model_config = ConfigDict(frozen=True)

    n: int
    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width."""
        return None if self.low is None else self.mean - self.low


class Difference(Estimate):
    """A mean difference over the n seeds that both sides have, and how often it has which sign."""

    above: int
    equal: int
    below: int

    def scaled(self, sign: int) -> "Difference":
        """The difference seen from the other side, for sign = -1."""
        if sign > 0:
            return self
        return Difference(
            n=self.n,
            mean=-self.mean,
            low=None if self.high is None else -self.high,
            high=None if self.low is None else -self.low,
            above=self.below,
            equal=self.equal,
            below=self.above,
        )


def estimate(values: Sequence[float]) -> Estimate:
    """The mean and its Student t interval; raises ValueError for no values."""
    if not values:
        raise ValueError("there is no mean of nothing")
    mean = fmean(values)
    if len(values) < 2:
        return Estimate(n=1, mean=mean)
    half = t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Estimate(n=len(values), mean=mean, low=mean - half, high=mean + half)


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """ours - theirs by seed, with the paired t interval; None if no seed is in both."""
    differences = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    if not differences:
        return None
    found = estimate(differences)
    return Difference(
        **found.model_dump(),
        above=sum(value > ROUNDING for value in differences),
        equal=sum(abs(value) <= ROUNDING for value in differences),
        below=sum(value < -ROUNDING for value in differences),
    )


@cache
def t_quantile(freedom: int) -> float:
    """t with P(|T| <= t) = 0.95 for Student's T.

    P(|T| > t) is the regularised incomplete beta function I_x(v / 2, 1 / 2) at x = v / (v + t^2).
    """

    def beyond(t: float) -> float:
        x = freedom / (freedom + t * t)
        return float(mp.betainc(freedom / 2, 0.5, 0, x, regularized=True)) - (1 - LEVEL)

    # From the normal distribution's 1.96 to one degree of freedom's 12.71.
    return float(mp.findroot(beyond, (1.9, 12.8), solver="anderson"))
