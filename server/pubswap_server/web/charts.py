"""A small line of a run's pass@1, as SVG from the server.

The list of runs may have many; it needs no script. `points` has what the other charts draw.
"""

from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Sparkline:
    """`line` has the polyline's points."""

    words: str
    line: str


def sparkline(values: Sequence[float]) -> Sparkline | None:
    """A small line without axes; None for fewer than two values."""
    if len(values) < 2:
        return None
    points = _scaled(list(enumerate(values)), (2, 98), (22, 2))
    return Sparkline(f"from {values[0]:.3g} to {values[-1]:.3g}", _line(points))


def _scaled(points: Sequence[Point], across: Point, up: Point) -> list[Point]:
    """Points scaled to the picture; a coordinate with a single value goes to the middle."""

    def placed(values: Sequence[float], ends: Point) -> list[float]:
        low, high = min(values), max(values)
        shares = (0.5 if high == low else (value - low) / (high - low) for value in values)
        return [ends[0] + share * (ends[1] - ends[0]) for share in shares]

    xs, ys = zip(*points, strict=True)
    return list(zip(placed(xs, across), placed(ys, up), strict=True))


def _line(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
