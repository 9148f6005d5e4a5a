"""A small line of a run's pass@1, as SVG from the server: the list of runs needs no script."""

from collections.abc import Sequence
from dataclasses import dataclass

from pubswap_protocol.command_line.curves import svg_points


@dataclass(frozen=True, slots=True)
class SmallChart:
    """`line` has the polyline's points."""

    words: str
    line: str


def small_chart(values: Sequence[float]) -> SmallChart | None:
    """A small line without axes; None for fewer than two values."""
    if len(values) < 2:
        return None
    line = svg_points(list(enumerate(values)), (2, 98), (22, 2))
    return SmallChart(f"from {values[0]:.3g} to {values[-1]:.3g}", line)
