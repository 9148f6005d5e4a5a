"""Curves drawn without a plotting library: as a row of blocks, and as points of an SVG."""

from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
Point = tuple[float, float]


def block_curve(values: Sequence[float]) -> str:
    """The values as blocks, lowest to highest; flat if they are all the same."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if high <= low:
        return BLOCKS[0] * len(values)
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[round((value - low) / (high - low) * top)] for value in values)


def svg_points(points: Sequence[Point], across: Point, up: Point) -> str:
    """The `points` of an SVG's polyline, of one point or more.

    The lowest and the highest coordinate go to the two ends in `across` and `up`, a coordinate
    with a single value to the middle. `up` begins with the larger number, as SVG counts down.
    """

    def placed(values: Sequence[float], ends: Point) -> list[float]:
        low, high = min(values), max(values)
        shares = (0.5 if high == low else (value - low) / (high - low) for value in values)
        return [ends[0] + share * (ends[1] - ends[0]) for share in shares]

    xs, ys = zip(*points, strict=True)
    placed_points = zip(placed(xs, across), placed(ys, up), strict=True)
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in placed_points)
