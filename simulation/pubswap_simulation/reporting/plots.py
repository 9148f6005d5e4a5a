"""The pictures of one comparison: curves, final pass@1 by tau, drift, alpha, rewards, topics."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from pubswap_simulation.reporting import metrics
from pubswap_simulation.reporting.curves import Curve, curve
from pubswap_simulation.reporting.estimates import Estimate, estimate
from pubswap_simulation.reporting.methods import BASE, FEDAVG, Method
from pubswap_simulation.reporting.metrics import Series
from pubswap_simulation.reporting.section import Section
from pubswap_simulation.reporting.style import BLACK, SETTINGS, Look, looks
from pubswap_simulation.reporting.tables import topics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SMOOTHING = 12  # a line with a point at every step is smoothed over this part of them
_TRUSTED = 3  # intervals of fewer seeds would hide everything else; the tables have them

Looks = Mapping[Method, Look]


@dataclass(frozen=True)
class _Kind:
    """One kind of picture of curves."""

    name: str
    series: Series
    unit: str
    scale: float = 100
    smooth: bool = False


_KINDS = (
    _Kind("curves", metrics.pass_over_steps, "pass@1 (%)"),
    _Kind("drift", metrics.drift_over_steps, "drift between pairs of clients (L2)", scale=1),
    _Kind("replaced", metrics.replaced_over_steps, "replaced share α (%)", smooth=True),
    _Kind("rewards", metrics.rewards_over_steps, "mean reward of own responses (%)", smooth=True),
)


def draw(section: Section, folder: Path, prefix: str) -> list[str]:
    """Write the PNGs of a section; their names, each beginning with `prefix`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = []
    with matplotlib.rc_context(SETTINGS):
        for name, figure in _figures(section):
            names.append(f"{prefix}{name}.png")
            figure.savefig(folder / names[-1], metadata={"Software": None})
            plt.close(figure)
    return names


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


def _figures(section: Section) -> Iterator[tuple[str, "Figure"]]:
    for suffix, methods in groups(section):
        look = looks(methods)
        yield f"final{suffix}", _by_tau(section, look)
        for kind in _KINDS:
            curves = _curves(section, methods, kind)
            if curves:
                yield f"{kind.name}{suffix}", _panels(section, look, kind, curves)
    heat = _heat_map(section)
    if heat is not None:
        yield "topics", heat


def _curves(
    section: Section, methods: Sequence[Method], kind: _Kind
) -> dict[int, dict[Method, Curve]]:
    """The lines of each panel, which is a tau; panels with none are left out."""
    found: dict[int, dict[Method, Curve]] = {}
    for tau in section.taus:
        for method in methods:
            line = curve(section.cell(method, tau), kind.series)
            if line.steps:
                window = max(1, round(len(line.steps) / _SMOOTHING)) if kind.smooth else 1
                found.setdefault(tau, {})[method] = line.smoothed(window)
    return found


def _panels(
    section: Section, look: Looks, kind: _Kind, curves: Mapping[int, Mapping[Method, Curve]]
) -> "Figure":
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
    _limit(grid[0][0], [line for lines in curves.values() for line in lines.values()], kind.scale)
    longest = max(len(line.steps) for lines in curves.values() for line in lines.values())
    smooth = kind.smooth and longest >= 1.5 * _SMOOTHING
    grid[0][0].set_ylabel(kind.unit + (f"\nrunning mean, 1/{_SMOOTHING} of the run" * smooth))
    _legend(figure, section, [look_of(method, look) for method in look if _drawn(method, curves)])
    return figure


def _drawn(method: Method, curves: Mapping[int, Mapping[Method, Curve]]) -> bool:
    return any(method in lines for lines in curves.values())


def look_of(method: Method, look: Looks) -> tuple[str, Look]:
    """A row's name and look, for the legend."""
    return method.label, look[method]


def _line(axes: "Axes", line: Curve, how: Look, kind: _Kind, shift: float) -> None:
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


def _limit(axes: "Axes", lines: Sequence[Curve], scale: float) -> None:
    """Show every mean, and the intervals of three seeds and more; no share beyond 0 or 100 %."""
    seen = [value for line in lines for value in line.means]
    for line in lines:
        if line.n >= _TRUSTED:
            seen += line.lows + line.highs
    low, high = scale * min(seen), scale * max(seen)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = max(0.0, low - room), high + room
    axes.set_ylim(low, min(high, 102.0) if scale == 100 else high)


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
    _limit(axes, shown, 100)
    axes.set(xlabel="local steps a round, τ", ylabel="final pass@1 (%)")
    axes.set_xticks(range(len(taus)), [str(tau) for tau in taus])
    axes.set_xlim(-0.5, len(taus) - 0.5)
    axes.grid(axis="x", visible=False)
    base = fmean(point.mean for point in _points(section, BASE, taus).values())
    rows = [look_of(method, look) for method in look]
    _legend(figure, section, [*rows, (f"base model: {100 * base:.1f}", _UNSEEN)])
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


def _legend(figure: "Figure", section: Section, rows: Sequence[tuple[str, Look]]) -> None:
    """A title, and one legend below for all panels, in the order of the tables."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=label, **how.line) for label, how in rows]
    longest = max((len(label) for label, _ in rows), default=1)
    columns = max(1, min(len(rows), int(figure.get_figwidth() / (0.5 + 0.065 * longest))))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    figure.suptitle(f"{section.title}: mean and 95 % interval over seeds", fontsize=9)


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
