"""Shares of the mean: weights that sum to 1, of which none is over a bound."""

import math
from collections.abc import Sequence


def shares_of(weights: Sequence[float], largest: float = 1.0) -> tuple[float, ...]:
    """min(largest, c w_n) with the c for which they sum to 1; all equal where there is none.

    So whoever is over the bound has the bound, and the others share the rest by their weights.
    With `largest` = 0.5, two clients are equal whatever their weights.
    """
    count = len(weights)
    if count * largest <= 1:
        return (1 / count,) * count
    capped: set[int] = set()
    while True:
        left = 1 - largest * len(capped)
        total = math.fsum(w for n, w in enumerate(weights) if n not in capped)
        shares = tuple(largest if n in capped else left * w / total for n, w in enumerate(weights))
        over = {n for n, share in enumerate(shares) if share > largest}
        if not over:
            return shares
        capped |= over
