"""The plots of a report: final pass@1, pass@1 by steps and by bytes, and the contrasts.

Intervals of fewer than three seeds are left to the tables: they would hide everything else.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pubswap_simulation.reporting.contrasts import MINUS, Contrast
from pubswap_simulation.reporting.estimates import Estimate
from pubswap_simulation.reporting.methods import Row
from pubswap_simulation.reporting.section import Cell, Section, final
from pubswap_simulation.reporting.table import traffic
from pubswap_simulation.results import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRUSTED = 3  # seeds
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7f7f7f", "#000000")
MARKERS = "osDv^PX<>hdp*"
LINES = ("-", "--", ":", "-.")
Styles = Mapping[Row, Mapping[str, Any]]  # matplotlib's names


def line_styles(rows: Iterable[Row]) -> Styles:
    """A look for each row, for all plots of a report."""
    ordered = sorted(rows, key=lambda row: row.order)
    return {
        row: {"color": COLORS[n % len(COLORS)], "marker": MARKERS[n % len(MARKERS)]}
        for n, row in enumerate(ordered)
    }


def interval(value: Estimate) -> float:
    """Half the width of the interval, or 0 if there are too few seeds to show it."""
    return 0.0 if value.half_width is None or value.n < TRUSTED else value.half_width


def finals(section: Section, styles: Styles) -> "Figure":
    """Final pass@1 of every row and tau, one below the other, so that no interval hides another."""
    from matplotlib.figure import Figure

    cells = [cell for cell in section.cells if section.values(cell, final)]
    figure = Figure(figsize=(7.5, 1.2 + 0.28 * len(cells)))
    axes = figure.add_subplot()
    for y, cell in enumerate(cells):
        value = Estimate(section.values(cell, final))
        x, half = 100 * value.mean, 100 * interval(value)
        axes.errorbar(x, y, xerr=half, **{**styles[cell[0]], "linestyle": ""})
        text: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": 6}
        axes.annotate(f"{x:.1f}, n {value.n}", (x, y), xytext=(0, 4), **text)
    base = Estimate(section.base(lambda result: result.base)).mean
    axes.axvline(100 * base, color="grey", linestyle=":", linewidth=1)
    names = [row.label if len(section.taus) == 1 else f"{row.label}, τ {tau}" for row, tau in cells]
    axes.set_yticks(range(len(cells)), names)
    axes.set_ylim(len(cells) - 0.4, -0.8)
    axes.set_xlabel("final pass@1 (%)")
    axes.grid(axis="y", visible=False)
    figure.suptitle(f"{section.title}: mean and 95 % interval over seeds; dotted, the base model")
    return figure


def curves(section: Section, styles: Styles) -> "Figure":
    """pass@1 at each round's end, by steps and by one client's bytes until then."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogFormatter

    figure = Figure(figsize=(9.0, 3.6 + 0.17 * (len(section.rows) + 1) // 2))
    by_steps, by_bytes = figure.subplots(1, 2, sharey=True)
    dashes = dict(zip(reversed(section.taus), itertools.cycle(LINES)))
    for row, tau in section.cells:
        line = {**styles[row], "linestyle": dashes[tau]}
        points = by_round(section, (row, tau))
        means = [100 * point.mean for point in points.values()]
        halves = [100 * interval(point) for point in points.values()]
        by_steps.errorbar([tau * number for number in points], means, halves, **line)
        if row.members == "federated":
            sent = fmean(sum(traffic(one.run).values()) for one in section.results((row, tau)))
            sizes = [sent / 1e6 * number for number in points]
            by_bytes.errorbar(sizes[1:], means[1:], halves[1:], **line)
    by_steps.set(xlabel="GRPO steps of each client", ylabel="pass@1 (%)")
    by_bytes.set(xlabel="MB sent and received by a client", xscale="log")
    by_bytes.xaxis.set_major_formatter(LogFormatter())
    by_bytes.xaxis.set_minor_formatter(LogFormatter())
    handles = [Line2D([], [], label=row.label, **styles[row]) for row in section.rows]
    if len(dashes) > 1:
        handles += [
            Line2D([], [], label=f"τ = {tau}", color="grey", linestyle=dash)
            for tau, dash in dashes.items()
        ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    figure.suptitle(f"{section.title}: mean and 95 % interval over seeds")
    return figure


def by_round(section: Section, cell: Cell) -> dict[int, Estimate]:
    """pass@1 of a row at each round's end, over the seeds, which all have been evaluated then."""
    numbers = range(1 + max(result.run.settings.rounds for result in section.results(cell)))
    seeds = section.values(cell, final).keys()
    found = {number: section.values(cell, partial(_score, number)) for number in numbers}
    return {n: Estimate(values) for n, values in found.items() if values and values.keys() == seeds}


def _score(number: int, result: Result) -> float | None:
    rounds = result.run.rounds
    return next(
        (one.evaluation.pass_at_1 for one in rounds if one.round == number and one.evaluation), None
    )


def forest(primary: Contrast, others: Sequence[Contrast]) -> "Figure":
    """Paired differences: a dot for each seed, and their mean with its interval."""
    from matplotlib.figure import Figure

    groups = [group for group in ([primary], others) if group]
    wrapped = primary.name.replace(MINUS, f"\n{MINUS}")
    heights = [1.5 + len(group) for group in groups]
    figure = Figure(figsize=(7.5, 0.8 + 0.27 * sum(heights)))
    panels = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, group, color in zip(panels, groups, COLORS, strict=False):
        axes.axvline(0, color="grey", linestyle=":", linewidth=1)
        for y, contrast in enumerate(group):
            values = [100 * value for value in contrast.difference.by_seed.values()]
            axes.plot(values, [y] * len(values), "o", color="grey", alpha=0.4)
            mean, half = 100 * contrast.difference.mean, 100 * interval(contrast.difference)
            axes.errorbar(mean, y, xerr=half, fmt="D", color=color)
        names = [contrast.name for contrast in group]
        axes.set_yticks(range(len(group)), names if group is others else [wrapped])
        axes.set_ylim(len(group) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
    panels[-1].set_xlabel("points of final pass@1")
    figure.suptitle("Paired differences: each seed, their mean and 95 % interval")
    return figure
