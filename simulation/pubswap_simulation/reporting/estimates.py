"""A mean over seeds with its 95 % interval, and a difference that is paired by seed."""

import math
from collections.abc import Iterable, Mapping, Sequence
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


def cell_text(value: Estimate | None, share: bool) -> str:
    """What stands in a table: a difference with its signs, a mean without."""
    if isinstance(value, Difference):
        return difference_text(value, share)
    return estimate_text(value, share)


def estimate_text(value: Estimate | None, share: bool, signed: bool = False) -> str:
    """`47.3 ± 1.2 (5)`, of a share in per cent."""
    return "" if value is None else f"{mean_text(value, share, signed)} ({value.n})"


def mean_text(value: Estimate, share: bool, signed: bool = False) -> str:
    """`47.3 ± 1.2`, or `47.3` of one seed."""
    half = value.half_width
    digits = _digits(value.mean / 10 if half is None else half, share)
    mean = number(value.mean, share, digits, signed)
    return mean if half is None else f"{mean} ± {number(half, share, digits)}"


def difference_text(value: Difference | None, share: bool) -> str:
    """`+1.2 ± 0.8 (5: 4/0/1)`."""
    if value is None:
        return ""
    text = estimate_text(value, share, signed=True)
    return f"{text[:-1]}: {value.above}/{value.equal}/{value.below})"


def number(value: float, share: bool, digits: int, signed: bool = False) -> str:
    """With so many digits behind the point; a share in per cent."""
    return f"{100 * value if share else value:{'+' if signed else ''}.{digits}f}"


def _digits(value: float, share: bool) -> int:
    """One digit for per cent; else as many as show two that count, six at most."""
    if share:
        return 1
    return 2 if value == 0 else min(6, max(0, 1 - math.floor(math.log10(abs(value)))))


def interval_text(value: Estimate, share: bool) -> str:
    """`+0.3 to +1.2`, of a difference; nothing of one seed."""
    if value.low is None or value.high is None:
        return ""
    digits = _digits((value.high - value.low) / 2, share)
    low, high = (number(end, share, digits, signed=True) for end in (value.low, value.high))
    return f"{low} to {high}"


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A Markdown table, its first `left` columns to the left."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    rule = ["---" if place < left else "---:" for place in range(len(heads))]
    return "\n".join([line(heads), line(rule), *(line(row) for row in rows)])
