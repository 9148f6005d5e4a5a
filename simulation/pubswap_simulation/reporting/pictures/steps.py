"""Curves over the GRPO steps of a run: a panel for each tau, or for each client."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pubswap_simulation.reporting import metrics
from pubswap_simulation.reporting.methods import Arm
from pubswap_simulation.reporting.metrics import Series
from pubswap_simulation.reporting.pictures.curve import Curve, curve
from pubswap_simulation.reporting.pictures.styles import (
    LineStyle,
    error_bars,
    legend,
    span,
    subplots,
)
from pubswap_simulation.reporting.section import Cell, Section

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SMOOTHING = 12  # a line with a point at every step is smoothed over 1/12 of them

Styles = Mapping[Arm, LineStyle]
Panels = Mapping[str, Mapping[Arm, Curve]]  # by title


@dataclass(frozen=True)
class CurvePlot:
    """A kind of picture with curves: each panel has a line for each row."""

    name: str
    series: Series
    unit: str
    scale: float = 100
    smooth: bool = False

    def line(self, cell: Cell) -> Curve | None:
        """A row's line, or None if it has no point."""
        line = curve(cell, self.series, SMOOTHING if self.smooth else None, self.scale)
        return line if line.steps else None

    def draw(self, title: str, styles: Styles, panels: Panels) -> "Figure":
        """Draw the panels as one figure."""
        size = (1.2 + 2.9 * max(2, len(panels)), 3.7)
        figure, grid = subplots(1, len(panels), figsize=size, sharey=True, squeeze=False)
        for axes, (name, lines) in zip(grid[0], panels.items(), strict=True):
            for number, (method, line) in enumerate(lines.items()):
                self._line(axes, line, styles[method], number - (len(lines) - 1) / 2)
            axes.set(title=name, xlabel="GRPO steps of each client")
            _show_run(axes, lines.values())
        curves = [line for lines in panels.values() for line in lines.values()]
        grid[0][0].set_ylim(*span(curves))
        smooth = self.smooth and max(len(line.steps) for line in curves) >= 1.5 * SMOOTHING
        grid[0][0].set_ylabel(self.unit + (f"\nrunning mean, 1/{SMOOTHING} of the run" * smooth))
        drawn = {method for lines in panels.values() for method in lines}
        rows = [(method.label, style) for method, style in styles.items() if method in drawn]
        legend(figure, title, rows)
        return figure

    def _line(self, axes: "Axes", line: Curve, style: LineStyle, shift: float) -> None:
        if len(line.steps) == 1:  # a band would be invisible: draw error bars side by side
            x = [line.steps[0] * (1 + 0.05 * shift)]
            error_bars(axes, x, line, **vars(style))
            return
        look = vars(style) | ({"marker": ""} if self.smooth else {})
        axes.plot(line.steps, line.means, **look)
        axes.fill_between(
            line.steps, line.lows, line.highs, color=style.color, alpha=0.12, linewidth=0
        )


REWARDS = CurvePlot(
    "rewards", metrics.rewards_over_steps, "mean reward of own responses (%)", smooth=True
)
PLOTS = (
    CurvePlot("curves", metrics.pass_over_steps, "pass@1 (%)"),
    CurvePlot("drift", metrics.drift_over_steps, "drift between pairs of clients (L2)", scale=1),
    CurvePlot("replaced", metrics.replaced_over_steps, "replaced share α (%)", smooth=True),
    REWARDS,
)


def _show_run(axes: "Axes", lines: Iterable[Curve]) -> None:
    """Show the whole run, or a single round's end if there is only one."""
    steps = sorted({step for line in lines for step in line.steps})
    total = steps[-1]
    axes.set_xlim(-0.04 * total, 1.04 * total)
    if len(steps) == 1:
        axes.set_xlim(0.5 * total, 1.5 * total)
        axes.set_xticks(steps)


def by_tau(section: Section, methods: Sequence[Arm], plot: CurvePlot) -> Panels:
    """The lines of each tau's panel; empty panels are left out."""
    panels: dict[str, dict[Arm, Curve]] = {}
    for tau in section.taus:
        for method in methods:
            if line := plot.line(section.cell(method, tau)):
                panels.setdefault(f"τ = {tau}", {})[method] = line
    return panels


def by_client(section: Section, methods: Sequence[Arm]) -> Panels:
    """Rewards of each client at the largest tau, a panel for each."""
    largest = max(section.taus)
    cells = {m: section.cell(m, largest) for m in methods if m.kind == "federated"}
    results = [one for cell in cells.values() for of_seed in cell.values() for one in of_seed]
    panels = {}
    for client in sorted({name for result in results for name in result.rewards}):
        plot = replace(REWARDS, series=partial(metrics.rewards_of, client))
        panels[client] = {m: line for m, cell in cells.items() if (line := plot.line(cell))}
    return panels
