"""Line styles, legends and axis limits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pubswap_simulation.reporting.methods import NO_EXCHANGE, Arm
from pubswap_simulation.reporting.pictures.curve import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, GREY = "#000000", "#7f7f7f"
ORANGE, SKY, GREEN, BLUE = "#E69F00", "#56B4E9", "#009E73", "#0072B2"
VERMILION, PURPLE = "#D55E00", "#CC79A7"

SETTINGS = {
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


@dataclass(frozen=True)
class LineStyle:
    """A row's colour, marker and line style, by matplotlib's names."""

    color: str
    marker: str
    linestyle: str = "-"


COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY, BLACK)
MARKERS = "osDv^PX<>hdp*"
_LINES = ("-", "--", ":", "-.")


def line_styles(methods: Sequence[Arm]) -> dict[Arm, LineStyle]:
    """A style for each row. No two share both colour and marker. The paper's own rows look the same
    in every picture, except for further variants such as other periods."""
    styles: dict[Arm, LineStyle] = {}
    for method in methods:
        style = _PLAIN.get((method.kind, method.name, method.strategy)) if method.plain else None
        if style is not None and style not in styles.values():
            styles[method] = style
    for method in methods:
        if method not in styles:
            styles[method] = _unlike(list(styles.values()))
    return {method: styles[method] for method in methods}


def _unlike(others: Sequence[LineStyle]) -> LineStyle:
    """A style with the least used colour and, among these, the least used marker."""
    colors = [style.color for style in others]
    markers = [style.marker for style in others]
    pairs = set(zip(colors, markers, strict=True))
    color, marker = min(
        ((color, marker) for marker in MARKERS for color in COLORS if (color, marker) not in pairs),
        key=lambda pair: (colors.count(pair[0]), markers.count(pair[1])),
    )
    return LineStyle(color, marker, _LINES[colors.count(color) % len(_LINES)])


_PLAIN = {
    ("alone", "fedavg", None): LineStyle(GREY, "x", ":"),
    ("pooled", "fedavg", None): LineStyle(BLACK, "*", "--"),
    ("federated", "fedavg", None): LineStyle(VERMILION, "s"),
    ("federated", "fedprox", None): LineStyle(ORANGE, "P"),
    ("federated", "pubswap", NO_EXCHANGE): LineStyle(GREEN, "D", "--"),
    ("federated", "pubswap", "random"): LineStyle(PURPLE, "^"),
    ("federated", "pubswap", "keep"): LineStyle(BLUE, "o"),
}

_LEGEND_LINE = 0.17  # inches


def subplots(*shape: int, **options: Any) -> "tuple[Figure, Any]":
    """A new figure and its axes, as from matplotlib's function of this name."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(*shape, **options)
    return figure, axes


def error_bars(axes: "Axes", x: Sequence[float], line: Curve, **style: Any) -> None:
    """A line with the intervals of its points."""
    axes.errorbar(x, line.means, yerr=line.error_bars, capsize=2, elinewidth=1, **style)


def span(lines: Sequence[Curve]) -> tuple[float, float]:
    """The limits of an axis that shows every mean and interval; nothing measured is below 0.

    A mean of 0 is kept off the edge.
    """
    shown = [v for line in lines for v in (*line.means, *line.lows, *line.highs)]
    low, high = min(shown), max(shown)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    below = low < 0 or any(mean == 0 for line in lines for mean in line.means)
    return (low - room if below else max(0.0, low - room)), high + room


def legend(figure: "Figure", title: str, rows: Sequence[tuple[str, LineStyle]]) -> None:
    """Add a title, and below all panels one legend in the order of the tables."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=label, **vars(style)) for label, style in rows]
    longest = max((len(label) for label, _ in rows), default=1)
    columns = max(1, min(len(rows), int(figure.get_figwidth() / (0.5 + 0.065 * longest))))
    # The panels keep their height, however many lines the legend has.
    lines = math.ceil(len(rows) / columns)
    figure.set_figheight(figure.get_figheight() + _LEGEND_LINE * max(0, lines - 3))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    figure.suptitle(f"{title}: mean and 95 % interval over seeds", fontsize=9)
