"""Coordinates of charts, for templates that draw them as SVG.

Computed on the server, they need no JavaScript and no inline style, which the pages' content
security policy forbids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pubswap_protocol.command_line.amounts import duration_text

Point = tuple[float, float]

WIDTH, HEIGHT = 320, 140
LEFT, RIGHT, TOP, BOTTOM = 66, 10, 10, 22  # room for the axes' labels
BAR_PITCH, BAR_TEXT = 16, 46  # from one bar to the next; room for its total
MAX_MARKS = 60  # with more points, only the line is drawn


@dataclass(frozen=True, slots=True)
class Chart:
    """`line` has the polyline's points; `marks` are points with a tooltip: x, y and words. `low`
    and `high` are the range of the values (y), `first` and `last` the range of the rounds (x).
    """

    words: str
    line: str
    marks: Sequence[tuple[float, float, str]] = ()
    low: float = 0.0
    high: float = 0.0
    first: float = 0
    last: float = 0


@dataclass(frozen=True, slots=True)
class StackedBar:
    """A round's time by part; `y` is the bar's upper edge, and each of `parts` has a name, x, width
    and words.
    """

    label: str
    y: float
    parts: Sequence[tuple[str, float, float, str]]
    end: float
    total: float


def bars(rows: Sequence[tuple[str, Mapping[str, float]]]) -> list[StackedBar]:
    """One bar for each label, of its parts' seconds; the longest fills the width."""
    longest = max((sum(parts.values()) for _, parts in rows), default=0.0)
    if longest <= 0:
        return []
    scale, drawn = (WIDTH - LEFT - BAR_TEXT) / longest, []
    for number, (label, seconds) in enumerate(rows):
        x, parts = float(LEFT), []
        for name, value in seconds.items():
            width = round(value * scale, 1)
            parts.append((name, round(x, 1), width, f"{label}, {name}: {duration_text(value)}"))
            x += width
        total = sum(seconds.values())
        drawn.append(StackedBar(label, number * BAR_PITCH, parts, round(x + 4, 1), total))
    return drawn


def sparkline(values: Sequence[float]) -> Chart | None:
    """A small line without axes; None for fewer than two values."""
    if len(values) < 2:
        return None
    points = _scaled(list(enumerate(values)), (2, 98), (22, 2))
    return Chart(f"from {values[0]:.3g} to {values[-1]:.3g}", _line(points))


def chart(title: str, points: Sequence[Point], of: str = "round") -> Chart | None:
    """Values (y) by round or step (x); None without values."""
    if not points:
        return None
    rounds, values = [x for x, _ in points], [y for _, y in points]
    scaled = _scaled(points, (LEFT, WIDTH - RIGHT), (HEIGHT - BOTTOM, TOP))
    marks = [
        (round(sx, 1), round(sy, 1), f"{of} {x:g}: {y:.4g}")
        for (x, y), (sx, sy) in zip(points, scaled, strict=True)
    ]
    return Chart(
        words=f"{title}: {values[-1]:.4g} in {of} {rounds[-1]:g}, from {values[0]:.4g}",
        line=_line(scaled),
        marks=marks if len(marks) <= MAX_MARKS else (),
        low=min(values),
        high=max(values),
        first=rounds[0],
        last=rounds[-1],
    )


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
