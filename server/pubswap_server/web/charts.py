"""Curves as points of a picture, for templates that draw them as SVG.

From the server they need no JavaScript, and no style that the pages' policy forbids.
"""

from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]

WIDTH, HEIGHT = 320, 140
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 22  # room for the axes' labels
MOST_MARKS = 60  # points with a mark of their own; of more, the line alone is drawn


@dataclass(frozen=True, slots=True)
class Mark:
    """A value to be pointed at."""

    x: float
    y: float
    words: str


@dataclass(frozen=True, slots=True)
class Chart:
    """`line` is a polyline's points; `low` and `high` are the ends of the values (y), `first` and
    `last` those of the rounds (x).
    """

    words: str
    line: str
    marks: Sequence[Mark] = ()
    low: float = 0.0
    high: float = 0.0
    first: float = 0
    last: float = 0


def sparkline(values: Sequence[float]) -> Chart | None:
    """A small line without axes; none of fewer than two values."""
    if len(values) < 2:
        return None
    points = _scaled(list(enumerate(values)), (2, 98), (22, 2))
    return Chart(f"from {values[0]:.3g} to {values[-1]:.3g}", _line(points))


def chart(title: str, points: Sequence[Point]) -> Chart | None:
    """Values (y) by round (x); none of no values."""
    if not points:
        return None
    rounds, values = [x for x, _ in points], [y for _, y in points]
    scaled = _scaled(points, (LEFT, WIDTH - RIGHT), (HEIGHT - BOTTOM, TOP))
    marks = [
        Mark(round(sx, 1), round(sy, 1), f"round {x:g}: {y:.4g}")
        for (x, y), (sx, sy) in zip(points, scaled, strict=True)
    ]
    return Chart(
        words=f"{title}: {values[-1]:.4g} in round {rounds[-1]:g}, from {values[0]:.4g}",
        line=_line(scaled),
        marks=marks if len(marks) <= MOST_MARKS else (),
        low=min(values),
        high=max(values),
        first=rounds[0],
        last=rounds[-1],
    )


def _scaled(points: Sequence[Point], across: Point, up: Point) -> list[Point]:
    """Points in the picture; of a single value, its middle."""
    xs, ys = [x for x, _ in points], [y for _, y in points]

    def place(value: float, all_: Sequence[float], ends: Point) -> float:
        low, high = min(all_), max(all_)
        share = 0.5 if high == low else (value - low) / (high - low)
        return ends[0] + share * (ends[1] - ends[0])

    low_x, high_x, low_y, high_y = min(xs), max(xs), min(ys), max(ys)
    return [(place(x, (low_x, high_x), across), place(y, (low_y, high_y), up)) for x, y in points]


def _line(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
