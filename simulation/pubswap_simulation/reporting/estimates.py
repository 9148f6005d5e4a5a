"""A mean over seeds with its 95 % interval, and a difference paired by seed."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from statistics import fmean, stdev
from typing import ClassVar

from mpmath import mp
from pydantic import BaseModel

ROUNDING = 1e-12  # less than the effect of a single problem


class Estimate(BaseModel, frozen=True):
    """A mean over n seeds; one seed has no interval."""

    sign: ClassVar[str] = ""  # "+" where means are printed with their sign

    n: int
    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def half_width(self) -> float | None:
        return None if self.low is None else self.mean - self.low

    def text(self, share: bool) -> str:
        """`47.3 ± 1.2 (5)`, in per cent for a share."""
        return f"{self.mean_text(share)} ({self.n})"

    def mean_text(self, share: bool) -> str:
        """`47.3 ± 1.2`, or `47.3` for one seed."""
        half = self.half_width
        digits = _digits(self.mean / 10 if half is None else half, share)
        mean = _number(self.mean, share, digits, self.sign)
        return mean if half is None else f"{mean} ± {_number(half, share, digits)}"


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

    def text(self, share: bool) -> str:
        """`+1.2 ± 0.8 (5: 4/0/1)`."""
        return f"{self.mean_text(share)} ({self.n}: {self.signs})"

    def interval_text(self, share: bool) -> str:
        """`+0.3 to +1.2`; empty for one seed."""
        if self.low is None or self.high is None:
            return ""
        digits = _digits((self.high - self.low) / 2, share)
        return " to ".join(_number(end, share, digits, self.sign) for end in (self.low, self.high))


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


def text(value: Estimate | None, share: bool) -> str:
    """A table's cell; empty if there is no value."""
    return "" if value is None else value.text(share)


def _number(value: float, share: bool, digits: int, sign: str = "") -> str:
    return f"{100 * value if share else value:{sign}.{digits}f}"


def _digits(value: float, share: bool) -> int:
    """Decimals: one for per cent; otherwise enough for two significant digits, at most six."""
    if share:
        return 1
    return 2 if value == 0 else min(6, max(0, 1 - math.floor(math.log10(abs(value)))))


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A Markdown table whose first `left` columns are left-aligned."""

    def line(cells: Sequence[str]) -> str:
        # A topic may be any text, including several lines and bars.
        return "| " + " | ".join(" ".join(c.split()).replace("|", "\\|") for c in cells) + " |"

    rule = ["---" if column < left else "---:" for column in range(len(heads))]
    return "\n".join([line(heads), line(rule), *(line(row) for row in rows)])
