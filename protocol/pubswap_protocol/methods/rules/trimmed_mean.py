"""The coordinate-wise trimmed mean (Yin et al., 2018)."""

import math
from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import Field

from pubswap_protocol.methods.rules.median import Median
from pubswap_protocol.methods.rules.rule import RULES, Array, Row, Rule
from pubswap_protocol.methods.rules.trimming import trimmed_mean


@RULES.register
class TrimmedMean(Rule):
    """The mean of each number over the clients, without the smallest and the largest ones."""

    name = "trimmed_mean"
    weighs = False

    trim: Annotated[float, Field(gt=0, lt=0.5, strict=True)] = Field(
        default=0.2, description="beta, the share of the clients that is dropped at either end."
    )

    def dropped(self, clients: int) -> int:
        """The number of clients dropped at either end: floor(beta n)."""
        return math.floor(self.trim * clients + 1e-9)  # 0.29 * 100 is a little below 29

    def combine(self, rows: Sequence[Array], shares: Sequence[float], out: Row) -> None:
        trimmed_mean(rows, self.dropped(len(rows)), out)

    def used(self, updates: int) -> Rule:
        return self if self.dropped(updates) else Median()

    def impossible(self, clients: int) -> Iterator[str]:
        if clients < 3:
            yield (
                "rule 'trimmed_mean' drops at least one client at either end, so it needs 3, "
                f"and the run has {clients}; use rule 'fedit' or 'median'"
            )
        elif self.dropped(clients) < 1:
            yield (
                f"rule 'trimmed_mean' with trim = {self.trim} drops none of {clients} clients; "
                f"set trim to at least 1 / {clients}, or use rule 'fedit' or 'median'"
            )
