"""Figures as text, and Markdown tables: what one reads is what its interval allows."""

import math
from collections.abc import Iterable, Sequence

from pubswap_simulation.reporting.estimates import Difference, Estimate


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
