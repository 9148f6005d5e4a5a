"""The pictures of one comparison: curves, final pass@1 by tau, drift, alpha, rewards, topics."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pubswap_simulation.reporting import metrics
from pubswap_simulation.reporting.estimates import Estimate, estimate
from pubswap_simulation.reporting.methods import BASE, FEDAVG, Method
from pubswap_simulation.reporting.metrics import Series
from pubswap_simulation.reporting.section import Cell, Section
from pubswap_simulation.reporting.tables import topics


@dataclass(frozen=True)
class Curve:
    """At each step the mean over n seeds, and the ends of its interval (the mean for n = 1)."""

    n: int
    steps: list[int]
    means: list[float]
    lows: list[float]
    highs: list[float]

    def smoothed(self, window: int) -> "Curve":
        """Each value the mean over `window` neighbours, of fewer at the ends."""
        means, lows, highs = (
            _smoothed(values, window) for values in (self.means, self.lows, self.highs)
        )
        return Curve(self.n, self.steps, means, lows, highs)


def curve(cell: Cell, series: Series) -> Curve:
    """The steps that every seed has; of clients that train alone, the mean counts."""
    by_seed = [_mean([series(result) for result in results]) for results in cell.values()]
    steps = _common(by_seed)
    points = [estimate([one[step] for one in by_seed]) for step in steps]
    return Curve(
        n=len(by_seed),
        steps=steps,
        means=[point.mean for point in points],
        lows=[point.mean if point.low is None else point.low for point in points],
        highs=[point.mean if point.high is None else point.high for point in points],
    )


def _mean(all_series: Sequence[Mapping[int, float]]) -> dict[int, float]:
    return {step: fmean(series[step] for series in all_series) for step in _common(all_series)}


def _common(all_series: Sequence[Mapping[int, float]]) -> list[int]:
    if not all_series:
        return []
    return sorted(set[int].intersection(*(set(series) for series in all_series)))


def _smoothed(values: Sequence[float], window: int) -> list[float]:
    before, after = (window - 1) // 2, window // 2
    return [
        fmean(values[max(0, place - before) : place + after + 1]) for place in range(len(values))
    ]


BLACK, GREY = "#000000", "#7f7f7f"
ORANGE, SKY, GREEN, BLUE = "#E69F00", "#56B4E9", "#009E73", "#0072B2"
VERMILION, PURPLE, YELLOW = "#D55E00", "#CC79A7", "#F0E442"

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
class Look:
    """A row's colour, marker and kind of line, the same in every picture."""

    color: str
    marker: str
    linestyle: str = "-"

    @property
    def line(self) -> dict[str, Any]:
        """For matplotlib's plot."""
        return {"color": self.color, "marker": self.marker, "linestyle": self.linestyle}


_KEEP = (Look(BLUE, "o"), Look(SKY, "D"), Look(GREEN, "v"), Look(BLACK, "X"))
_RANDOM = (Look(PURPLE, "^"), Look(PURPLE, "v", "--"), Look(PURPLE, "<", ":"), Look(PURPLE, ">"))
_VARIANTS = (
    Look(GREEN, "D"),
    Look(PURPLE, "^"),
    Look(ORANGE, "v"),
    Look(SKY, "h"),
    Look(BLACK, "X"),
    Look(GREY, "P"),
    Look(GREEN, "d", "--"),
    Look(PURPLE, "<", "--"),
    Look(ORANGE, ">", "--"),
    Look(SKY, "p", "--"),
)


def looks(methods: Sequence[Method]) -> dict[Method, Look]:
    """How each of these rows is drawn."""
    found, variants = {}, 0
    for method in methods:
        if method.plain:
            found[method] = _plain(method, methods)
        else:
            found[method] = _VARIANTS[variants % len(_VARIANTS)]
            variants += 1
    return found


def _plain(method: Method, methods: Sequence[Method]) -> Look:
    if method.kind == "alone":
        return Look(GREY, "x", ":")
    if method.kind == "pooled":
        return Look(BLACK, "*", "--")
    if method.name == "fedprox":
        return Look(ORANGE, "P")
    if method.name == "fedavg":
        return Look(VERMILION, "s")
    family = _KEEP if method.strategy == "keep" else _RANDOM
    periods = sorted({m.period or 0 for m in methods if m.strategy == method.strategy and m.plain})
    return family[periods.index(method.period or 0) % len(family)]


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


if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A PNG: its file's name, what it shows, and that in words."""

    name: str
    kind: str
    caption: str


_KINDS = (
    Kind("curves", metrics.pass_over_steps, "pass@1 (%)"),
    Kind("drift", metrics.drift_over_steps, "drift between pairs of clients (L2)", scale=1),
    Kind("replaced", metrics.replaced_over_steps, "replaced share α (%)", smooth=True),
    Kind("rewards", metrics.rewards_over_steps, "mean reward of own responses (%)", smooth=True),
)


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


def groups(section: Section) -> list[tuple[str, list[Method]]]:
    """What goes into one picture: the paper's rows; what goes beyond them, beside two of these."""
    rows = [method for method in section.methods if method != BASE and not method.detail]
    plain = [method for method in rows if method.plain]
    varied = [method for method in rows if not method.plain]
    found = [("", plain)] if plain else []
    if varied:
        keep = [method for method in plain if method.strategy == "keep"][:1]
        found.append(("-beyond", [m for m in plain if m in (FEDAVG, *keep)] + varied))
    return found


def _figures(section: Section) -> Iterator[tuple[str, str, "Figure"]]:
    for suffix, methods in groups(section):
        look = looks(methods)
        yield "final", suffix, _by_tau(section, look)
        for kind in _KINDS:
            curves = _curves(section, methods, kind)
            if curves:
                yield kind.name, suffix, panels(section.title, look, kind, curves)
    heat = _heat_map(section)
    if heat is not None:
        yield "topics", "", heat


def _curves(
    section: Section, methods: Sequence[Method], kind: Kind
) -> dict[int, dict[Method, Curve]]:
    """The lines of each panel, which is a tau; panels with none are left out."""
    found: dict[int, dict[Method, Curve]] = {}
    for tau in section.taus:
        for method in methods:
            line = curve(section.cell(method, tau), kind.series)
            if line.steps:
                window = max(1, round(len(line.steps) / SMOOTHING)) if kind.smooth else 1
                found.setdefault(tau, {})[method] = line.smoothed(window)
    return found


def _by_tau(section: Section, look: Looks) -> "Figure":
    """Final pass@1 against tau, side by side so that no interval hides another."""
    from matplotlib import pyplot as plt

    taus = section.taus
    figure: Figure
    figure, axes = plt.subplots(figsize=(max(5.5, 2.4 + 1.6 * len(taus)), 3.8))
    width = 0.6 / max(1, len(look) - 1)
    shown: list[Curve] = []
    for place, (method, how) in enumerate(look.items()):
        found = _points(section, method, taus)
        line = _as_curve(found)
        shown.append(line)
        shift = (place - (len(look) - 1) / 2) * width
        around = [
            [100 * (mean - low) for mean, low in zip(line.means, line.lows, strict=True)],
            [100 * (high - mean) for mean, high in zip(line.means, line.highs, strict=True)],
        ]
        axes.errorbar(
            [taus.index(tau) + shift for tau in found],
            [100 * mean for mean in line.means],
            yerr=around,
            capsize=2,
            elinewidth=1,
            **(how.line | {"linewidth": 0.8}),
        )
    limit(axes, shown, 100)
    axes.set(xlabel="local steps a round, τ", ylabel="final pass@1 (%)")
    axes.set_xticks(range(len(taus)), [str(tau) for tau in taus])
    axes.set_xlim(-0.5, len(taus) - 0.5)
    axes.grid(axis="x", visible=False)
    base = fmean(point.mean for point in _points(section, BASE, taus).values())
    rows = [(method.label, how) for method, how in look.items()]
    legend(figure, section.title, [*rows, (f"base model: {100 * base:.1f}", _UNSEEN)])
    return figure


_UNSEEN = Look(BLACK, "", "")


def _points(section: Section, method: Method, taus: Sequence[int]) -> dict[int, Estimate]:
    metric = metrics.base if method == BASE else metrics.final
    values = {tau: section.values(method, tau, metric) for tau in taus}
    return {tau: estimate(list(value.values())) for tau, value in values.items() if value}


def _as_curve(points: Mapping[int, Estimate]) -> Curve:
    means = [point.mean for point in points.values()]
    half = [point.half_width or 0.0 for point in points.values()]
    return Curve(
        n=min((point.n for point in points.values()), default=0),
        steps=list(points),
        means=means,
        lows=[mean - width for mean, width in zip(means, half, strict=True)],
        highs=[mean + width for mean, width in zip(means, half, strict=True)],
    )


def _heat_map(section: Section) -> "Figure | None":
    """Final pass@1 of each row on each topic, at the largest tau."""
    from matplotlib import pyplot as plt

    largest = max(section.taus)
    by_topic = topics(section)
    rows = {
        method.label: found
        for method in section.methods
        if method.mu is None and (found := by_topic[method.label].get(largest))
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
