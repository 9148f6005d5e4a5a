"""Multi-Krum (Blanchard et al., 2017)."""

from collections.abc import Iterator

import numpy as np
from pydantic import Field

from pubswap_protocol.bounds import Clients
from pubswap_protocol.methods.rules.median import Median
from pubswap_protocol.methods.rules.rule import RULES, Matrix, Rule


@RULES.register
class MultiKrum(Rule):
    """The mean of the m clients whose updates are closest to N - f - 2 others.

    It tolerates f bad clients of N >= 2 f + 3. The score of client n is the sum of
    |theta_n - theta_j|^2 over the N - f - 2 clients j that are closest to it.
    """

    name = "multi_krum"
    selects = True

    bad: Clients = Field(default=1, description="f, the number of bad clients that it tolerates.")
    averaged: Clients | None = Field(
        default=None, description="m, the number of clients that it averages; n - f by default."
    )

    def select(self, distances: Matrix) -> list[int]:
        """The m clients with the lowest scores; ties go to the first by name."""
        count = len(distances)
        distances = distances.copy()
        np.fill_diagonal(distances, np.inf)
        closest = np.sort(distances, axis=1)[:, : count - self.bad - 2]
        order = np.argsort(closest.sum(axis=1), kind="stable")
        limit = count - self.bad
        selected = limit if self.averaged is None else min(self.averaged, limit)
        return sorted(order[:selected].tolist())

    def used(self, updates: int) -> Rule:
        """The median, which tolerates fewer than half, where too few came."""
        return self if updates >= 2 * self.bad + 3 else Median()

    def impossible(self, clients: int) -> Iterator[str]:
        needed = 2 * self.bad + 3
        if clients < needed:
            yield (
                f"rule 'multi_krum' with bad = {self.bad} needs at least 2 f + 3 = {needed} "
                f"clients, and the run has {clients}"
            )
        if self.averaged is not None and self.averaged > clients - self.bad:
            yield (
                f"averaged = {self.averaged} of {clients} clients would include some of the "
                f"bad = {self.bad} ones; it can be at most n - f"
            )
