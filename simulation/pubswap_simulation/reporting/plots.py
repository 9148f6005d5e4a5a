"""The pictures of one comparison: curves, final pass@1 by tau, drift, alpha, rewards, topics."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pubswap_simulation.reporting import metrics
from pubswap_simulation.reporting.estimates import Estimate, estimate
from pubswap_simulation.reporting.methods import BASE, FEDAVG, Method
from pubswap_simulation.reporting.metrics import FINAL, Series
from pubswap_simulation.reporting.section import Cell, Section
from pubswap_simulation.reporting.tables import table, topics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Curve:
    """At each step the mean over n seeds, and the ends of its interval (the mean for n = 1)."""

    n: int
    steps: list[int]
    means: list[float]
    lows: list[float]
    highs: list[float]

    @classmethod
    def of(cls, points: Mapping[int, Estimate]) -> "Curve":
        """A curve through estimates by step."""
        values = list(points.values())
        return cls(
            n=min((point.n for point in values), default=0),
            steps=list(points),
            means=[point.mean for point in values],
            lows=[point.mean if point.low is None else point.low for point in values],
            highs=[point.mean if point.high is None else point.high for point in values],
        )

    def smoothed(self, window: int) -> "Curve":
        """Each value the mean over `window` neighbours, of fewer at the ends."""
        before, after = (window - 1) // 2, window // 2
        means, lows, highs = (
            [fmean(values[max(0, i - before) : i + after + 1]) for i in range(len(values))]
            for values in (self.means, self.lows, self.highs)
        )
        return Curve(self.n, self.steps, means, lows, highs)

    def scaled(self, scale: float) -> "Curve":
        """All values times `scale`, such as 100 for per cent."""
        means, lows, highs = (
            [scale * value for value in values] for values in (self.means, self.lows, self.highs)
        )
        return Curve(self.n, self.steps, means, lows, highs)

    @property
    def error_bars(self) -> list[list[float]]:
        """matplotlib's `yerr`: the intervals' ends, below and above the means."""
        return [
            [mean - low for mean, low in zip(self.means, self.lows, strict=True)],
            [high - mean for mean, high in zip(self.means, self.highs, strict=True)],
        ]


def curve(cell: Cell, series: Series) -> Curve:
    """The steps that every seed has; of clients that train alone, the mean counts."""
    by_seed = [_mean([series(result) for result in results]) for results in cell.values()]
    return Curve.of({step: estimate([one[step] for one in by_seed]) for step in _common(by_seed)})


def _mean(all_series: Sequence[Mapping[int, float]]) -> dict[int, float]:
    return {step: fmean(series[step] for series in all_series) for step in _common(all_series)}


def _common(all_series: Sequence[Mapping[int, float]]) -> list[int]:
    if not all_series:
        return []
    return sorted(set[int].intersection(*(set(series) for series in all_series)))


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
    """A row's colour, marker and kind of line."""

    color: str
    marker: str
    linestyle: str = "-"

    @property
    def keywords(self) -> dict[str, Any]:
        """For matplotlib's plot."""
        return {"color": self.color, "marker": self.marker, "linestyle": self.linestyle}


_KEEP = (LineStyle(BLUE, "o"), LineStyle(SKY, "D"), LineStyle(GREEN, "v"), LineStyle(BLACK, "X"))
_RANDOM = (
    LineStyle(PURPLE, "^"),
    LineStyle(PURPLE, "v", "--"),
    LineStyle(PURPLE, "<", ":"),
    LineStyle(PURPLE, ">"),
)
_VARIANTS = (
    LineStyle(GREEN, "D"),
    LineStyle(PURPLE, "^"),
    LineStyle(ORANGE, "v"),
    LineStyle(SKY, "h"),
    LineStyle(BLACK, "X"),
    LineStyle(GREY, "P"),
    LineStyle(GREEN, "d", "--"),
    LineStyle(PURPLE, "<", "--"),
    LineStyle(ORANGE, ">", "--"),
    LineStyle(SKY, "p", "--"),
)


def line_styles(methods: Sequence[Method]) -> dict[Method, LineStyle]:
    """The lines of these rows; the paper's own look the same in every picture."""
    variants = cycle(_VARIANTS)
    return {
        method: _plain_style(method, methods) if method.plain else next(variants)
        for method in methods
    }


def _plain_style(method: Method, methods: Sequence[Method]) -> LineStyle:
    if method.kind == "alone":
        return LineStyle(GREY, "x", ":")
    if method.kind == "pooled":
        return LineStyle(BLACK, "*", "--")
    if method.name == "fedprox":
        return LineStyle(ORANGE, "P")
    if method.name == "fedavg":
        return LineStyle(VERMILION, "s")
    family = _KEEP if method.strategy == "keep" else _RANDOM
    periods = sorted({m.period or 0 for m in methods if m.strategy == method.strategy and m.plain})
    return family[periods.index(method.period or 0) % len(family)]


SMOOTHING = 12  # a line with a point at every step is smoothed over this part of them
_TRUSTED = 3  # intervals of fewer seeds would hide everything else; the tables have them
_LEGEND_LINE = 0.17  # inches

Styles = Mapping[Method, LineStyle]
Panels = Mapping[int, Mapping[Method, Curve]]


@dataclass(frozen=True)
class CurvePlot:
    """A kind of picture with curves: one panel for each tau, one line for each row."""

    name: str
    series: Series
    unit: str
    scale: float = 100
    smooth: bool = False

    def draw(self, title: str, styles: Styles, panels: Panels) -> "Figure":
        """The picture of these curves."""
        from matplotlib import pyplot as plt

        figure: Figure
        size = (1.2 + 2.9 * max(2, len(panels)), 3.7)
        figure, grid = plt.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False)
        for axes, (tau, lines) in zip(grid[0], panels.items(), strict=True):
            for number, (method, line) in enumerate(lines.items()):
                self._line(axes, line, styles[method], number - (len(lines) - 1) / 2)
            axes.set(title=f"τ = {tau}", xlabel="GRPO steps of each client")
            _span(axes, lines.values())
        curves = [line for lines in panels.values() for line in lines.values()]
        limit(grid[0][0], curves, self.scale)
        smooth = self.smooth and max(len(line.steps) for line in curves) >= 1.5 * SMOOTHING
        grid[0][0].set_ylabel(self.unit + (f"\nrunning mean, 1/{SMOOTHING} of the run" * smooth))
        drawn = {method for lines in panels.values() for method in lines}
        rows = [(method.label, style) for method, style in styles.items() if method in drawn]
        legend(figure, title, rows)
        return figure

    def _line(self, axes: "Axes", line: Curve, style: LineStyle, shift: float) -> None:
        line = line.scaled(self.scale)
        if len(line.steps) == 1:  # no band can be seen: an interval beside those of the others
            x = [line.steps[0] * (1 + 0.05 * shift)]
            _error_bars(axes, x, line, **style.keywords)
            return
        axes.plot(
            line.steps, line.means, **(style.keywords | ({"marker": ""} if self.smooth else {}))
        )
        if line.n >= _TRUSTED:
            axes.fill_between(
                line.steps, line.lows, line.highs, color=style.color, alpha=0.12, linewidth=0
            )


_PLOTS = (
    CurvePlot("curves", metrics.pass_over_steps, "pass@1 (%)"),
    CurvePlot("drift", metrics.drift_over_steps, "drift between pairs of clients (L2)", scale=1),
    CurvePlot("replaced", metrics.replaced_over_steps, "replaced share α (%)", smooth=True),
    CurvePlot(
        "rewards", metrics.rewards_over_steps, "mean reward of own responses (%)", smooth=True
    ),
)


def _error_bars(axes: "Axes", x: Sequence[float], line: Curve, **style: Any) -> None:
    axes.errorbar(x, line.means, yerr=line.error_bars, capsize=2, elinewidth=1, **style)


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
    shown = [value for line in lines for value in line.means]
    for line in lines:
        if line.n >= _TRUSTED:
            shown += line.lows + line.highs
    low, high = scale * min(shown), scale * max(shown)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = max(0.0, low - room), high + room
    axes.set_ylim(low, min(high, 102.0) if scale == 100 else high)


def legend(figure: "Figure", title: str, rows: Sequence[tuple[str, LineStyle]]) -> None:
    """A title, and one legend below for all panels, in the order of the tables."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=label, **style.keywords) for label, style in rows]
    longest = max((len(label) for label, _ in rows), default=1)
    columns = max(1, min(len(rows), int(figure.get_figwidth() / (0.5 + 0.065 * longest))))
    # The panels keep their height, however many lines the legend has.
    lines = math.ceil(len(rows) / columns)
    figure.set_figheight(figure.get_figheight() + _LEGEND_LINE * max(0, lines - 3))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    figure.suptitle(f"{title}: mean and 95 % interval over seeds", fontsize=9)


@dataclass(frozen=True)
class Picture:
    """A PNG: its file's name, its kind, and a caption."""

    name: str
    kind: str
    caption: str


_CAPTIONS = {
    "final": "Final pass@1 against τ",
    "curves": "pass@1 over GRPO steps",
    "drift": "Drift between clients over GRPO steps",
    "replaced": "Replaced share over GRPO steps",
    "rewards": "Mean reward of own responses over GRPO steps",
    "topics": "Final pass@1 by topic",
}


def draw(section: Section, folder: Path, prefix: str) -> list[Picture]:
    """Write the PNGs of a section, each name beginning with `prefix`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    pictures = []
    with matplotlib.rc_context(SETTINGS):
        for kind, suffix, figure in _figures(section):
            picture = Picture(f"{prefix}{kind}{suffix}.png", kind, _CAPTIONS[kind])
            figure.savefig(folder / picture.name, metadata={"Software": None})
            plt.close(figure)
            pictures.append(picture)
    return pictures


def _figures(section: Section) -> Iterator[tuple[str, str, "Figure"]]:
    for suffix, methods in _groups(section):
        styles = line_styles(methods)
        yield "final", suffix, _by_tau(section, styles)
        for plot in _PLOTS:
            if panels := _panels(section, methods, plot):
                yield plot.name, suffix, plot.draw(section.title, styles, panels)
    if (heat_map := _heat_map(section)) is not None:
        yield "topics", "", heat_map


def _groups(section: Section) -> Iterator[tuple[str, list[Method]]]:
    """The rows of each picture: the paper's; those beyond them, beside two of these."""
    rows = [method for method in section.methods if method != BASE and not method.detail]
    plain = [method for method in rows if method.plain]
    varied = [method for method in rows if not method.plain]
    if plain:
        yield "", plain
    if varied:
        keep = [method for method in plain if method.strategy == "keep"][:1]
        yield "-beyond", [m for m in plain if m in (FEDAVG, *keep)] + varied


def _panels(section: Section, methods: Sequence[Method], plot: CurvePlot) -> Panels:
    """The lines of each tau's panel; panels with none are left out."""
    panels: dict[int, dict[Method, Curve]] = {}
    for tau in section.taus:
        for method in methods:
            line = curve(section.cell(method, tau), plot.series)
            if line.steps:
                window = max(1, round(len(line.steps) / SMOOTHING)) if plot.smooth else 1
                panels.setdefault(tau, {})[method] = line.smoothed(window)
    return panels


def _by_tau(section: Section, styles: Styles) -> "Figure":
    """Final pass@1 against tau, side by side so that no interval hides another."""
    from matplotlib import pyplot as plt

    taus, final = section.taus, table(section, FINAL).rows
    figure: Figure
    figure, axes = plt.subplots(figsize=(max(5.5, 2.4 + 1.6 * len(taus)), 3.8))
    width = 0.6 / max(1, len(styles) - 1)
    for number, (method, style) in enumerate(styles.items()):
        line = Curve.of(final[method.label])
        shift = (number - (len(styles) - 1) / 2) * width
        x = [taus.index(tau) + shift for tau in line.steps]
        _error_bars(axes, x, line.scaled(100), **(style.keywords | {"linewidth": 0.8}))
    limit(axes, [Curve.of(final[method.label]) for method in styles], 100)
    axes.set(xlabel="local steps a round, τ", ylabel="final pass@1 (%)")
    axes.set_xticks(range(len(taus)), [str(tau) for tau in taus])
    axes.set_xlim(-0.5, len(taus) - 0.5)
    axes.grid(axis="x", visible=False)
    base = fmean(point.mean for point in final[BASE.label].values())
    rows = [(method.label, style) for method, style in styles.items()]
    invisible = LineStyle(BLACK, "", "")
    legend(figure, section.title, [*rows, (f"base model: {100 * base:.1f}", invisible)])
    return figure


def _heat_map(section: Section) -> "Figure | None":
    """Final pass@1 of each row on each topic, at the largest tau."""
    from matplotlib import pyplot as plt

    largest = max(section.taus)
    by_topic = topics(section)
    rows = {
        method.label: scores
        for method in section.methods
        if method.mu is None and (scores := by_topic[method.label].get(largest))
    }
    names = sorted({topic for row in rows.values() for topic in row})
    if not names:
        return None
    values = [
        [100 * row[name].mean if name in row else math.nan for name in names]
        for row in rows.values()
    ]
    figure: Figure
    width = 0.075 * max(len(label) for label in rows)
    figure, axes = plt.subplots(figsize=(width + 1.4 + 0.8 * len(names), 1.5 + 0.3 * len(rows)))
    image = axes.imshow(values, cmap="Blues", aspect="auto", vmin=0, vmax=100)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            if not math.isnan(value):
                color = "white" if value > 60 else "black"
                axes.text(x, y, f"{value:.0f}", ha="center", va="center", color=color, fontsize=8)
    axes.set_xticks(range(len(names)), names, rotation=35, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(rows)), list(rows))
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    figure.colorbar(image, ax=axes, label="final pass@1 (%)", fraction=0.05)
    figure.suptitle(f"{section.title}: by topic at τ = {largest}, mean over seeds", fontsize=9)
    return figure
