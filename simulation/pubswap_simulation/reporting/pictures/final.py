"""Pictures of the final pass@1: every row, against tau, and by topic."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from pubswap_simulation.reporting.contrasts import Contrast
from pubswap_simulation.reporting.estimates import Estimate
from pubswap_simulation.reporting.methods import BASE, Arm
from pubswap_simulation.reporting.metrics import FINAL
from pubswap_simulation.reporting.pictures.curve import Curve
from pubswap_simulation.reporting.pictures.styles import (
    BLACK,
    BLUE,
    GREY,
    LineStyle,
    error_bars,
    legend,
    line_styles,
    span,
    subplots,
)
from pubswap_simulation.reporting.section import Section
from pubswap_simulation.reporting.tables import table, topics

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def arms(section: Section) -> "Figure":
    """Final pass@1 of every row, one below the other, so that no interval hides another."""
    final = table(section, FINAL).rows
    rows = [method for method in section.methods if method != BASE and not method.detail]
    rows = [method for method in rows if method.label in final]
    taus = [tau for tau in section.taus if any(tau in final[method.label] for method in rows)]
    width = 0.075 * max(len(method.label) for method in rows) + 2.6 * len(taus)
    size = (max(6.0, width), 1.2 + 0.3 * len(rows))
    figure, grid = subplots(1, len(taus), figsize=size, sharex=True, sharey=True, squeeze=False)
    shown, styles = [], line_styles([method for method in rows if method.plain])
    for axes, tau in zip(grid[0], taus, strict=True):
        for y, method in enumerate(rows):
            if (value := final[method.label].get(tau)) is None:
                continue
            line = Curve.of({y: value})
            shown.append(line)
            color = styles[method].color if method.plain else GREY
            axes.errorbar(line.means, [y], xerr=line.error_bars, fmt="o", color=color, capsize=2)
            axes.annotate(
                f"{line.means[0]:.1f}, n {value.n}",
                (line.means[0], y),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=6,
            )
        if (base := final[BASE.label].get(tau)) is not None:
            mean = [100 * base.mean]
            axes.axvline(mean[0], color=GREY, linestyle=":", linewidth=1)
            shown.append(Curve([0], mean, mean, mean))
        axes.set(title=f"τ = {tau}", xlabel="final pass@1 (%)")
        axes.grid(axis="y", visible=False)
    axes = grid[0][0]
    axes.set_yticks(range(len(rows)), [method.label for method in rows])
    axes.set_ylim(len(rows) - 0.4, -0.8)
    axes.set_xlim(*span(shown))
    figure.suptitle(
        f"{section.title}: mean and 95 % interval over seeds; dotted, the base model", fontsize=9
    )
    return figure


def against_tau(section: Section, methods: Sequence[Arm]) -> "Figure":
    """Final pass@1 against tau, each point at its tau."""
    taus, final = section.taus, table(section, FINAL).rows
    styles = line_styles(methods)
    figure, axes = subplots(figsize=(6.5, 4.2))
    lines = {method: Curve.of(final[method.label]) for method in methods}
    for method, line in lines.items():
        error_bars(axes, line.steps, line, **vars(styles[method]))
    axes.set_ylim(*span(list(lines.values())))
    axes.set_xscale("log")
    axes.set_xticks(taus, [str(tau) for tau in taus])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="local steps a round, τ", ylabel="final pass@1 (%)")
    base = fmean(point.mean for point in final[BASE.label].values())
    rows = [(method.label, styles[method]) for method in methods]
    invisible = LineStyle(BLACK, "", "")
    legend(figure, section.title, [*rows, (f"base model: {100 * base:.1f}", invisible)])
    return figure


def by_seed(contrast: Contrast) -> "Figure":
    """The paired differences of a contrast, a dot for each seed, and below them their mean."""
    seeds, values = list(contrast.by_seed), list(contrast.by_seed.values())
    positions, last = list(range(len(seeds))), len(seeds)
    figure, axes = subplots(figsize=(6.0, 1.2 + 0.22 * (last + 1)))
    axes.axvline(0, color=GREY, linestyle=":", linewidth=1)
    axes.plot([100 * value for value in values], positions, "o", color=GREY)
    mean = Curve.of({last: contrast})
    axes.errorbar(mean.means, [last], xerr=mean.error_bars, fmt="D", color=BLUE, capsize=3)
    axes.set_yticks([*positions, last], [*(f"seed {seed}" for seed in seeds), "mean, 95 %"])
    axes.set_ylim(last + 0.6, -0.6)
    axes.set_xlabel("difference of the final pass@1, in points")
    axes.grid(axis="y", visible=False)
    figure.suptitle(contrast.title, fontsize=9)
    return figure


def heat_map(section: Section) -> "Figure | None":
    """Final pass@1 of each row on each topic, at the largest tau."""
    largest = max(section.taus)
    by_topic = topics(section)
    rows = {
        method.label: scores
        for method in section.methods
        if method.mu is None and (scores := by_topic.get(method.label, {}).get(largest))
    }
    names = sorted({topic for row in rows.values() for topic in row})
    if not names:
        return None
    values = [
        [100 * row[name].mean if name in row else math.nan for name in names]
        for row in rows.values()
    ]
    labels = [f"{label}, n {max(e.n for e in row.values())}" for label, row in rows.items()]
    width = 0.075 * max(len(label) for label in labels)
    figure, axes = subplots(figsize=(width + 1.4 + 0.9 * len(names), 1.5 + 0.36 * len(rows)))
    image = axes.imshow(values, cmap="Blues", aspect="auto", vmin=0, vmax=100)
    for y, row in enumerate(rows.values()):
        for x, name in enumerate(names):
            if name in row:
                color = "white" if values[y][x] > 60 else "black"
                style = {"ha": "center", "va": "center", "color": color, "fontsize": 7}
                axes.text(x, y, _cell(row[name]), **style)
    # A topic may contain a dollar sign, which must not start a formula.
    text = {"rotation": 35, "ha": "right", "rotation_mode": "anchor", "parse_math": False}
    axes.set_xticks(range(len(names)), names, **text)
    axes.set_yticks(range(len(rows)), labels)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    figure.colorbar(image, ax=axes, label="final pass@1 (%)", fraction=0.05)
    figure.suptitle(
        f"{section.title}: by topic at τ = {largest}, mean and 95 % interval", fontsize=9
    )
    return figure


def _cell(value: Estimate) -> str:
    half = value.half_width
    return f"{100 * value.mean:.0f}" + ("" if half is None else f" ± {100 * half:.0f}")
