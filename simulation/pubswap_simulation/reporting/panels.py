"""Curves over steps, one panel for each tau, and what every picture shares."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pubswap_simulation.reporting.curves import Curve
from pubswap_simulation.reporting.methods import Method
from pubswap_simulation.reporting.metrics import Series
from pubswap_simulation.reporting.style import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SMOOTHING = 12  # a line with a point at every step is smoothed over this part of them
_TRUSTED = 3  # intervals of fewer seeds would hide everything else; the tables have them
_LEGEND_LINE = 0.17  # inches

Looks = Mapping[Method, Look]
Lines = Mapping[int, Mapping[Method, Curve]]


@dataclass(frozen=True)
class Kind:
    """One kind of picture of curves."""

    name: str
    series: Series
    unit: str
    scale: float = 100
    smooth: bool = False


def panels(title: str, look: Looks, kind: Kind, curves: Lines) -> "Figure":
    """One panel for each tau, one line for each row."""
    from matplotlib import pyplot as plt

    figure: Figure
    size = (1.2 + 2.9 * max(2, len(curves)), 3.7)
    figure, grid = plt.subplots(1, len(curves), figsize=size, sharey=True, squeeze=False)
    for axes, (tau, lines) in zip(grid[0], curves.items(), strict=True):
        for place, (method, line) in enumerate(lines.items()):
            shift = place - (len(lines) - 1) / 2
            _line(axes, line, look[method], kind, shift)
        axes.set(title=f"τ = {tau}", xlabel="GRPO steps of each client")
        _span(axes, lines.values())
    limit(grid[0][0], [line for lines in curves.values() for line in lines.values()], kind.scale)
    longest = max(len(line.steps) for lines in curves.values() for line in lines.values())
    smooth = kind.smooth and longest >= 1.5 * SMOOTHING
    grid[0][0].set_ylabel(kind.unit + (f"\nrunning mean, 1/{SMOOTHING} of the run" * smooth))
    legend(
        figure,
        title,
        [(method.label, how) for method, how in look.items() if _drawn(method, curves)],
    )
    return figure


def _drawn(method: Method, curves: Lines) -> bool:
    return any(method in lines for lines in curves.values())


def _line(axes: "Axes", line: Curve, how: Look, kind: Kind, shift: float) -> None:
    means, lows, highs = (
        [kind.scale * value for value in values] for values in (line.means, line.lows, line.highs)
    )
    if len(line.steps) == 1:  # no band can be seen: an interval beside those of the others
        place = line.steps[0] * (1 + 0.05 * shift)
        around = [[means[0] - lows[0]], [highs[0] - means[0]]]
        axes.errorbar([place], means, yerr=around, capsize=2, elinewidth=1, **how.line)
        return
    axes.plot(line.steps, means, **(how.line | ({"marker": ""} if kind.smooth else {})))
    if line.n >= _TRUSTED:
        axes.fill_between(line.steps, lows, highs, color=how.color, alpha=0.12, linewidth=0)


def _span(axes: "Axes", lines: Iterable[Curve]) -> None:
    """The whole run, or the one round's end if there is no more."""
    steps = sorted({step for line in lines for step in line.steps})
    total = steps[-1]
    axes.set_xlim(-0.04 * total, 1.04 * total)
    if len(steps) == 1:
        axes.set_xlim(0.5 * total, 1.5 * total)
        axes.set_xticks(steps)


def limit(axes: "Axes", lines: Sequence[Curve], scale: float) -> None:
    """Show every mean, and the intervals of three seeds and more; no share beyond 0 or 100 %."""
    seen = [value for line in lines for value in line.means]
    for line in lines:
        if line.n >= _TRUSTED:
            seen += line.lows + line.highs
    low, high = scale * min(seen), scale * max(seen)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = max(0.0, low - room), high + room
    axes.set_ylim(low, min(high, 102.0) if scale == 100 else high)


def legend(figure: "Figure", title: str, rows: Sequence[tuple[str, Look]]) -> None:
    """A title, and one legend below for all panels, in the order of the tables."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=label, **how.line) for label, how in rows]
    longest = max((len(label) for label, _ in rows), default=1)
    columns = max(1, min(len(rows), int(figure.get_figwidth() / (0.5 + 0.065 * longest))))
    # The panels keep their height, however many lines the legend has.
    lines = math.ceil(len(rows) / columns)
    figure.set_figheight(figure.get_figheight() + _LEGEND_LINE * max(0, lines - 3))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    figure.suptitle(f"{title}: mean and 95 % interval over seeds", fontsize=9)
