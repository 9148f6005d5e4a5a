"""A mean over seeds with its 95 % interval, and a difference paired by seed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev

from mpmath import mp

ROUNDING = 1e-12  # less than the effect of a single problem


@dataclass(frozen=True)
class Estimate:
    """One value for each of n seeds, n > 0: their mean with Student's t interval."""

    by_seed: Mapping[int, float]

    @property
    def n(self) -> int:
        return len(self.by_seed)

    @property
    def mean(self) -> float:
        return fmean(self.by_seed.values())

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval; None for one seed."""
        if self.n < 2:
            return None
        return t_quantile(self.n - 1) * stdev(self.by_seed.values()) / math.sqrt(self.n)

    @property
    def p_value(self) -> float | None:
        """Two-sided p-value of Student's t test against zero; None if the interval has no width."""
        half = self.half_width
        if half is None or half <= ROUNDING:
            return None
        return _beyond(self.mean / half * t_quantile(self.n - 1), self.n - 1)

    def text(self, share: bool = True) -> str:
        """`47.3 ± 1.2 (5)`, in per cent for a share, n in brackets; `47.3 (1)` for one seed."""
        half = self.half_width
        mean = f"{100 * self.mean:.1f}" if share else f"{self.mean:#.3g}"
        if half is not None:
            mean += f" ± {100 * half:.1f}" if share else f" ± {half:#.2g}"
        return f"{mean} ({self.n})"


class Difference(Estimate):
    """A difference of shares on each seed that both sides have."""

    @property
    def signs(self) -> str:
        """`4/0/1`: on how many seeds it is above, at and below zero."""
        values = self.by_seed.values()
        above, below = (sum(sign * value > ROUNDING for value in values) for sign in (1, -1))
        return f"{above}/{self.n - above - below}/{below}"

    @property
    def interval(self) -> str:
        """`+0.3 to +1.2`, in points; empty for one seed."""
        half = self.half_width
        if half is None:
            return ""
        return f"{100 * (self.mean - half):+.1f} to {100 * (self.mean + half):+.1f}"

    def text(self, share: bool = True) -> str:
        """`+1.2 ± 0.8 (5: 4/0/1)`, with n and the signs."""
        half = "" if self.half_width is None else f" ± {100 * self.half_width:.1f}"
        return f"{100 * self.mean:+.1f}{half} ({self.n}: {self.signs})"


def paired(treatment: Mapping[int, float], baseline: Mapping[int, float]) -> Difference | None:
    """treatment - baseline by seed, with the paired t interval; None if no seed is in both."""
    seeds = sorted(treatment.keys() & baseline.keys())
    return Difference({seed: treatment[seed] - baseline[seed] for seed in seeds}) if seeds else None


@cache
def t_quantile(freedom: int) -> float:
    """t with P(|T| <= t) = 0.95 for Student's T."""
    # From the normal distribution's 1.96 to one degree of freedom's 12.71.
    ends = (1.9, 12.8)
    return float(mp.findroot(lambda t: _beyond(t, freedom) - 0.05, ends, solver="anderson"))


def _beyond(t: float, freedom: int) -> float:
    """P(|T| > t): the regularised incomplete beta I_x(v / 2, 1 / 2) at x = v / (v + t^2)."""
    x = freedom / (freedom + t * t)
    return float(mp.betainc(freedom / 2, 0.5, 0, x, regularized=True))


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
