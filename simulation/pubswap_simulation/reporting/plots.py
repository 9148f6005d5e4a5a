"""The pictures of one comparison: curves, final pass@1 by tau, drift, alpha, rewards, topics."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from pubswap_simulation.reporting import metrics
from pubswap_simulation.reporting.curves import Curve, curve
from pubswap_simulation.reporting.estimates import Estimate, estimate
from pubswap_simulation.reporting.methods import BASE, FEDAVG, Method
from pubswap_simulation.reporting.panels import SMOOTHING, Kind, Looks, legend, limit, panels
from pubswap_simulation.reporting.section import Section
from pubswap_simulation.reporting.style import BLACK, SETTINGS, Look, looks
from pubswap_simulation.reporting.tables import topics

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
