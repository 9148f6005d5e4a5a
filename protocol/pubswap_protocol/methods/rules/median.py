"""The coordinate-wise median (Yin et al., 2018)."""

from collections.abc import Sequence

from pubswap_protocol.methods.rules.rule import RULES, Array, Row, Rule
from pubswap_protocol.methods.rules.trimming import trimmed_mean


@RULES.register
class Median(Rule):
    """The median of each number over the clients; it tolerates fewer than half of them."""

    name = "median"
    weighs = False

    def combine(self, rows: Sequence[Array], shares: Sequence[float], out: Row) -> None:
        """The middle number, or the mean of the two middle ones."""
        trimmed_mean(rows, (len(rows) - 1) // 2, out)
