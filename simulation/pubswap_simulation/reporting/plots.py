"""The plots of a report: final pass@1, curves over steps, topics, and the primary contrast.

Intervals of fewer than three seeds are left to the tables: they would hide everything else.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pubswap_client import plots
from pubswap_simulation.reporting.contrasts import Contrast
from pubswap_simulation.reporting.estimates import Estimate, estimate
from pubswap_simulation.reporting.measures import (
    FINAL,
    Series,
    drift,
    pass_at_1,
    replaced,
    rewards,
    topics,
)
from pubswap_simulation.reporting.methods import BASE, FEDAVG, Arm
from pubswap_simulation.reporting.section import Cell, Section
from pubswap_simulation.results import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRUSTED = 3  # seeds
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7f7f7f", "#000000")
MARKERS = "osDv^PX<>hdp*"
LINES = ("-", "--", ":", "-.")
# Each panel's series, its unit and its scale.
CURVES: tuple[tuple[Callable[[Result], Series], str, float], ...] = (
    (pass_at_1, "pass@1 (%)", 100),
    (drift, "drift between\npairs of clients (L2)", 1),
    (replaced, "replaced share α (%),\nrunning mean", 100),
    (rewards, "reward of own responses (%),\nrunning mean", 100),
)
SMOOTHED = (replaced, rewards)  # they have a point at nearly every step
SMOOTHING = 12  # by the mean over 1/12 of the run
Styles = Mapping[Arm, Mapping[str, Any]]  # matplotlib's names


def figures(section: Section, styles: Styles) -> Iterator[tuple[str, "Figure"]]:
    """The plots of a comparison, each with its name."""
    yield "final", final(section, styles)
    rows = shown(section)
    plain, varied = ([row for row in rows if row.plain is own] for own in (True, False))
    if plain:
        yield "curves", curves(section, plain, styles)
    if varied:  # with two of the paper's rows
        keep = [row for row in plain if row.strategy == "keep"][:1]
        own = [row for row in plain if row in (FEDAVG, *keep)]
        yield "curves-beyond", curves(section, own + varied, styles)
    if (figure := by_topic(section)) is not None:
        yield "topics", figure


def shown(section: Section) -> list[Arm]:
    """The rows that plots show: all but the base model and those that a summary row includes."""
    return [row for row in section.methods if row != BASE and not row.detail]


def line_styles(rows: Iterable[Arm]) -> Styles:
    """A look for each row, for all plots of a report; the paper's rows get the first colours."""
    return {
        row: {
            "color": COLORS[place % len(COLORS)],
            "marker": MARKERS[place % len(MARKERS)],
            "linestyle": LINES[place // len(COLORS) % len(LINES)],
        }
        for place, row in enumerate(sorted(rows, key=lambda row: (not row.plain, row.order)))
    }


def final(section: Section, styles: Styles) -> "Figure":
    """Final pass@1 of every row, one below the other, so that no interval hides another."""
    from matplotlib.figure import Figure

    rows, taus = shown(section), section.taus
    width = 0.075 * max(len(row.label) for row in rows) + 2.6 * len(taus)
    figure = Figure(figsize=(max(6.0, width), 1.2 + 0.3 * len(rows)))
    grid = figure.subplots(1, len(taus), sharex=True, sharey=True, squeeze=False)[0]
    for axes, tau in zip(grid, taus, strict=True):
        for y, row in enumerate(rows):
            if values := section.values(row, tau, FINAL):
                value = estimate(list(values.values()))
                x, half = 100 * value.mean, 100 * interval(value)
                axes.errorbar(x, y, xerr=half, fmt="o", color=styles[row]["color"])
                text = {"textcoords": "offset points", "ha": "center", "fontsize": 6}
                axes.annotate(f"{x:.1f}, n {value.n}", (x, y), xytext=(0, 4), **text)
        base = 100 * fmean(section.values(BASE, tau, FINAL).values())
        axes.axvline(base, color="grey", linestyle=":", linewidth=1)
        axes.set(title=f"τ = {tau}", xlabel="final pass@1 (%)")
        axes.grid(axis="y", visible=False)
    grid[0].set_yticks(range(len(rows)), [row.label for row in rows])
    grid[0].set_ylim(len(rows) - 0.4, -0.8)
    figure.suptitle(f"{section.title}: mean and 95 % interval over seeds; dotted, the base model")
    return figure


def interval(value: Estimate) -> float:
    """Half the width of the interval, or 0 if there are too few seeds to show it."""
    return 0.0 if value.half_width is None or value.n < TRUSTED else value.half_width


def curves(section: Section, rows: Sequence[Arm], styles: Styles) -> "Figure":
    """Means and intervals over the GRPO steps of a run: a column for each tau."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    lines = {
        (series, row, tau): line
        for series, _, _ in CURVES
        for row in rows
        for tau in section.taus
        if (line := over_steps(section.cells.get((row, tau), {}), series))
    }
    panels = [panel for panel in CURVES if any(series is panel[0] for series, _, _ in lines)]
    width = 1.2 + 2.9 * max(2, len(section.taus))
    columns = max(1, int(width / (0.5 + 0.065 * max(len(row.label) for row in rows))))
    height = 2.4 * len(panels) + 0.6 + 0.17 * math.ceil(len(rows) / columns)
    figure = Figure(figsize=(width, height))
    grid = figure.subplots(
        len(panels), len(section.taus), sharex="col", sharey="row", squeeze=False
    )
    for (series, unit, scale), of_series in zip(panels, grid, strict=True):
        for axes, tau in zip(of_series, section.taus, strict=True):
            for place, row in enumerate(rows):
                if (series, row, tau) in lines:
                    shift = place - (len(rows) - 1) / 2
                    _line(axes, lines[series, row, tau], scale, styles[row], shift)
        of_series[0].set_ylabel(unit)
    for tau, top, bottom in zip(section.taus, grid[0], grid[-1], strict=True):
        top.set_title(f"τ = {tau}")
        bottom.set_xlabel("GRPO steps of each client")
    handles = [Line2D([], [], label=row.label, **styles[row]) for row in rows]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(columns, len(rows)))
    figure.suptitle(f"{section.title}: mean and 95 % interval over seeds")
    return figure


def _line(
    axes: "Axes", line: Mapping[int, Estimate], scale: float, style: Mapping[str, Any], shift: float
) -> None:
    steps, points = list(line), list(line.values())
    means = [scale * one.mean for one in points]
    lows, highs = ([scale * (one.mean + d * interval(one)) for one in points] for d in (-1, 1))
    if len(steps) == 1:  # a band would be invisible: draw error bars side by side
        half = scale * interval(points[0])
        axes.errorbar([steps[0] * (1 + 0.02 * shift)], means, yerr=half, **style)
        return
    marker = style["marker"] if len(steps) <= 2 * SMOOTHING else ""
    axes.plot(steps, means, **{**style, "marker": marker})
    axes.fill_between(steps, lows, highs, color=style["color"], alpha=0.12, linewidth=0)


def over_steps(cell: Cell, series: Callable[[Result], Series]) -> dict[int, Estimate]:
    """The mean over seeds at each step that all have; clients that train alone are averaged.

    A series with a point at every step is first smoothed, so the interval is that of the smoothed
    values.
    """
    by_seed = []
    for results in cell.values():
        each = [series(result) for result in results]
        one = {step: fmean(values[step] for values in each) for step in _common(each)}
        by_seed.append(
            smoothed(one, max(1, round(len(one) / SMOOTHING))) if series in SMOOTHED else one
        )
    return {step: estimate([one[step] for one in by_seed]) for step in _common(by_seed)}


def smoothed(series: Series, window: int) -> Series:
    """The running mean over `window` neighbours, fewer at the ends."""
    behind, ahead, values = (window - 1) // 2, window // 2, list(series.values())
    return {
        step: fmean(values[max(0, index - behind) : index + ahead + 1])
        for index, step in enumerate(series)
    }


def _common(all_series: Sequence[Series]) -> list[int]:
    return sorted(set[int].intersection(*map(set, all_series))) if all_series else []


def by_topic(section: Section) -> "Figure | None":
    """Final pass@1 of each row on each topic, at the largest tau; None without topics."""
    largest = max(section.taus)
    found = topics(result for _, result in section.runs)
    rows = {}
    for row in (BASE, *shown(section)):
        values = [list(section.values(row, largest, topic).values()) for topic in found]
        if any(values):
            rows[row.label] = [estimate(each) if each else None for each in values]
    if not rows:
        return None
    return plots.heat_map(
        [f"{label}, n {max(one.n for one in row if one)}" for label, row in rows.items()],
        [measure.name for measure in found],
        [[100 * one.mean if one else math.nan for one in row] for row in rows.values()],
        [[_cell(one) if one else "" for one in row] for row in rows.values()],
        title=f"{section.title}: by topic at τ = {largest}, mean and 95 % interval",
        unit="final pass@1 (%)",
        highest=100,
    )


def _cell(value: Estimate) -> str:
    half = value.half_width
    return f"{100 * value.mean:.0f}" + ("" if half is None else f" ± {100 * half:.0f}")


def by_seed(contrast: Contrast) -> "Figure":
    """The paired differences of a contrast, a dot for each seed, and below them their mean."""
    from matplotlib.figure import Figure

    values, last = [100 * value for value in contrast.by_seed.values()], len(contrast.by_seed)
    figure = Figure(figsize=(6.0, 1.2 + 0.22 * (last + 1)))
    axes = figure.add_subplot()
    axes.axvline(0, color="grey", linestyle=":", linewidth=1)
    axes.plot(values, range(last), "o", color="grey")
    axes.errorbar(
        100 * contrast.mean, last, xerr=100 * interval(contrast), fmt="D", color=COLORS[0]
    )
    names = [*(f"seed {seed}" for seed in contrast.by_seed), "mean, 95 %"]
    axes.set_yticks(range(last + 1), names)
    axes.set_ylim(last + 0.6, -0.6)
    axes.set_xlabel("difference of the final pass@1, in points")
    axes.grid(axis="y", visible=False)
    figure.suptitle(contrast.title)
    return figure
