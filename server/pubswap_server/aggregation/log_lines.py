"""What a round's aggregation has to say to the operator: lines of the run's log."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pubswap_server.aggregation.updates import Updates

STANDS_OUT = "update stands out"
OUTLIER_RATIO = 20.0  # of an update's norm to the median of the others'


@dataclass(frozen=True, slots=True)
class LogLine:
    """An event to record in the run's log, once the round is published."""

    kind: str
    details: dict[str, Any]


def standing_out(members: Sequence[str], norms: Sequence[float]) -> list[LogLine]:
    """Updates many times as long as the others: from a mistake, or a hostile member."""
    lines = []
    for n, (member, norm) in enumerate(zip(members, norms, strict=True)):
        others = [*norms[:n], *norms[n + 1 :]]
        median = statistics.median(others) if others else 0.0
        if 0 < OUTLIER_RATIO * median < norm:
            details = {"member": member, "norm": norm, "median_of_others": median}
            lines.append(LogLine(STANDS_OUT, details))
    return lines


def largest_numbers(updates: Updates) -> str:
    """The members whose updates hold the largest numbers, for the operator to choose."""
    largest = {
        member: max(float(np.abs(source.tensor(name)).max()) for name in source.layout.tensors)
        for member, source in zip(updates.members, updates.sources, strict=True)
    }
    first = sorted(largest, key=lambda member: -largest[member])[:3]
    numbers = ", ".join(f"{member} {largest[member]:.3g}" for member in first)
    return f"The largest numbers in the updates: {numbers}."
