"""When a run will end, from how long its last rounds took."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

LAST = 6  # moments, so five rounds


def expected_end(ends: Sequence[datetime], left: int, now: datetime) -> datetime | None:
    """The moment when `left` more rounds are done; None if no round has told how long one takes.

    `ends` are the ends of the last rounds, and the beginning of the first of them, in order. The
    median of the rounds counts, so that one long wait does not. A round that takes longer already
    is taken to end now.
    """
    took = [(later - sooner).total_seconds() for sooner, later in pairwise(ends)]
    if not took or left < 1:
        return None
    usual = timedelta(seconds=median(took))
    return max(ends[-1] + usual, now) + (left - 1) * usual
