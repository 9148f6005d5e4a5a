"""Public prompts chosen by what they have taught so far (swap.prompts = "informative").

A group whose rewards are all equal teaches nothing, so a prompt is worth the variance p (1 - p) of
its rewards, over all clients' own responses in earlier exchanges. p is not known: with r right
of n responses and a uniform prior, it is Beta(a, b), a = r + 1, b = n - r + 1, and

    w = E[p (1 - p)] = a b / ((a + b) (a + b + 1))

A step draws its prompts in proportion to w. One that was never asked has w = 1/6, two thirds of the
most there is; one that all get right or wrong keeps about 1 / n, so that nothing is forgotten for
good. What was seen earlier counts half with each time that a prompt is asked again: policies move.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.draws import rng_for
from pubswap_protocol.settings import RunSettings

FORGETTING = 0.5


@dataclass(frozen=True, slots=True)
class Asked:
    """An earlier public step: its prompts (P,), and, once its exchange closed, what came of them.

    `right` (P,) counts the correct ones among the `responses` to each prompt.
    """

    prompts: Sequence[int]
    right: Sequence[int] | None = None
    responses: int = 0


class Shown:
    """What the prompts of a public set (size,) have shown so far, added up step by step."""

    def __init__(self, size: int) -> None:
        self._right, self._seen = np.zeros(size), np.zeros(size)

    def add(self, asked: Asked) -> None:
        """What comes of a step; nothing before its exchange is closed."""
        if asked.right is not None:
            places = list(asked.prompts)
            self._right[places] = FORGETTING * self._right[places] + asked.right
            self._seen[places] = FORGETTING * self._seen[places] + asked.responses

    def copy(self) -> "Shown":
        """The same, to be added to on its own."""
        copied = Shown(0)
        copied._right, copied._seen = self._right.copy(), self._seen.copy()
        return copied

    def variances(self) -> NDArray[np.float64]:
        """E[p (1 - p)] of each prompt (size,)."""
        a, b = self._right + 1, self._seen - self._right + 1
        found: NDArray[np.float64] = a * b / ((a + b) * (a + b + 1))
        return found


def informative_batch(
    settings: RunSettings, shown: Shown, round_: int, swap: int, earlier: Sequence[Asked]
) -> list[int]:
    """Indices (b,) into the public set for public step `swap` (1, 2, ...) of a round.

    `earlier` are the steps of this round before it, in their order, and `shown` is what came of
    all rounds before. No prompt comes twice in a round before all have come.
    """
    shown = shown.copy()
    for asked in earlier:
        shown.add(asked)
    worth = shown.variances()
    size = len(worth)
    uses = np.zeros(size, dtype=np.int64)
    for asked in earlier:
        uses[list(asked.prompts)] += 1
    rng = rng_for(settings.seed, "informative", round_, swap)
    batch: list[int] = []
    while (wanted := settings.grpo.prompts_per_step - len(batch)) > 0:
        left = np.setdiff1d(np.arange(size), batch)
        fresh = left[uses[left] == uses[left].min()]
        chances = worth[fresh] / worth[fresh].sum()
        drawn = rng.choice(fresh, size=min(wanted, len(fresh)), replace=False, p=chances)
        batch += drawn.tolist()
    return batch
