"""The pictures of one comparison: curves, final pass@1 by tau, drift, alpha, rewards, topics."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pubswap_simulation.reporting import metrics
from pubswap_simulation.reporting.estimates import Estimate, estimate
from pubswap_simulation.reporting.methods import BASE, FEDAVG, Method
from pubswap_simulation.reporting.metrics import Series
from pubswap_simulation.reporting.section import Cell, Section
from pubswap_simulation.reporting.style import SETTINGS, Look, looks
from pubswap_simulation.reporting.tables import topics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STEPS = "GRPO steps of each client"
_SMOOTHING = 12  # a curve of every step is smoothed over this share of its points
_BAND = "mean and 95 % interval over seeds"

Group = tuple[str, list[Method]]


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


def _figures(section: Section) -> Iterator[tuple[str, "Figure"]]:
    for suffix, methods in groups(section):
        look = looks(methods)
        yield f"final{suffix}", _by_tau(section, look)
        yield f"curves{suffix}", _curves(section, look, metrics.pass_over_steps, "pass@1 (%)")
        if drifting := _having(section, look, metrics.drift_over_steps):
            unit = "drift between pairs of clients (L2)"
            yield f"drift{suffix}", _curves(section, drifting, metrics.drift_over_steps, unit, 1)
        if swapping := _having(section, look, metrics.replaced_over_steps):
            unit = "replaced share α (%)"
            yield (
                f"replaced{suffix}",
                _curves(section, swapping, metrics.replaced_over_steps, unit, smooth=True),
            )
        if rewarded := _having(section, look, metrics.rewards_over_steps):
            unit = "mean reward of own responses (%)"
            yield (
                f"rewards{suffix}",
                _curves(section, rewarded, metrics.rewards_over_steps, unit, smooth=True),
            )
    if heat := _heat_map(section):
        yield "topics", heat


def groups(section: Section) -> list[Group]:
    """What goes into one picture: the paper's rows; what goes beyond them, beside two of these."""
    rows = [method for method in section.methods if method != BASE and not method.detail]
    plain = [method for method in rows if method.plain]
    varied = [method for method in rows if not method.plain]
    beside = {FEDAVG, *_first_keep(plain)} & set(plain)
    found = [("", plain)] if plain else []
    if varied:
        found.append(("-beyond", [m for m in plain if m in beside] + varied))
    return found


def _first_keep(methods: Sequence[Method]) -> list[Method]:
    return [method for method in methods if method.strategy == "keep"][:1]


def curve(cell: Cell, series: Series) -> dict[int, Estimate]:
    """A series' mean over seeds at each step that every seed has."""
    by_seed = [
        _mean_of([series(result) for result in results]) for _, results in sorted(cell.items())
    ]
    return {step: estimate([one[step] for one in by_seed]) for step in _common(by_seed)}


def _mean_of(all_series: Sequence[Mapping[int, float]]) -> dict[int, float]:
    return {step: fmean(series[step] for series in all_series) for step in _common(all_series)}


def _common(all_series: Sequence[Mapping[int, float]]) -> list[int]:
    if not all_series:
        return []
    return sorted(set[int].intersection(*(set(series) for series in all_series)))


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """The mean over up to `window` neighbours, of fewer at the ends."""
    before, after = (window - 1) // 2, window // 2
    return [
        fmean(values[max(0, place - before) : place + after + 1]) for place in range(len(values))
    ]


def _having(section: Section, look: Mapping[Method, Look], series: Series) -> dict[Method, Look]:
    return {
        method: how
        for method, how in look.items()
        if any(curve(cell, series) for cell in section.cells[method].values())
    }


def _curves(
    section: Section,
    look: Mapping[Method, Look],
    series: Series,
    unit: str,
    scale: float = 100,
    smooth: bool = False,
) -> "Figure":
    """One panel for each tau, one line for each row."""
    from matplotlib import pyplot as plt

    taus = [tau for tau in section.taus if any(section.cell(method, tau) for method in look)]
    figure: Figure
    figure, grid = plt.subplots(
        1, len(taus), figsize=(1.2 + 2.9 * len(taus), 3.6), sharey=True, squeeze=False
    )
    for axes, tau in zip(grid[0], taus, strict=True):
        for method, how in look.items():
            points = curve(section.cell(method, tau), series)
            if points:
                _line(axes, points, method.label, how, scale, smooth)
        axes.set(title=f"τ = {tau}", xlabel=_STEPS)
    grid[0][0].set_ylabel(unit + (f"\nrunning mean of 1/{_SMOOTHING} of the run" if smooth else ""))
    _finish(figure, section)
    return figure


def _line(
    axes: "Axes",
    points: Mapping[int, Estimate],
    label: str,
    how: Look,
    scale: float,
    smooth: bool,
) -> None:
    window = max(1, round(len(points) / _SMOOTHING)) if smooth else 1
    steps = list(points)

    def run(of: Callable[[Estimate], float | None]) -> list[float]:
        values = [of(point) for point in points.values()]
        return smoothed([scale * (0.0 if value is None else value) for value in values], window)

    line: dict[str, Any] = how.line | ({"marker": ""} if smooth else {})
    axes.plot(steps, run(lambda point: point.mean), label=label, **line)
    if all(point.low is not None for point in points.values()):
        low, high = run(lambda point: point.low), run(lambda point: point.high)
        axes.fill_between(steps, low, high, color=how.color, alpha=0.12, linewidth=0)


def _by_tau(section: Section, look: Mapping[Method, Look]) -> "Figure":
    """Final pass@1 against tau, side by side so that no interval hides another."""
    from matplotlib import pyplot as plt

    taus = section.taus
    figure: Figure
    figure, axes = plt.subplots(figsize=(max(5.0, 2.4 + 1.5 * len(taus)), 3.8))
    base = [estimate(list(section.values(BASE, tau, metrics.base).values())) for tau in taus]
    width = 0.6 / max(1, len(look) - 1)
    for place, (method, how) in enumerate(look.items()):
        values = {tau: section.values(method, tau, metrics.final) for tau in taus}
        found = {tau: estimate(list(value.values())) for tau, value in values.items() if value}
        shift = (place - (len(look) - 1) / 2) * width
        axes.errorbar(
            [taus.index(tau) + shift for tau in found],
            [100 * point.mean for point in found.values()],
            yerr=[100 * (point.half_width or 0.0) for point in found.values()],
            label=method.label,
            capsize=2,
            elinewidth=1,
            linewidth=0.8,
            **{key: value for key, value in how.line.items() if key != "linewidth"},
        )
    axes.plot(
        range(len(taus)),
        [100 * point.mean for point in base],
        color="black",
        linewidth=0.8,
        linestyle=(0, (1, 2)),
        label="base model",
    )
    axes.set(xlabel="local steps a round, τ", ylabel="final pass@1 (%)")
    axes.set_xticks(range(len(taus)), [str(tau) for tau in taus])
    axes.set_xlim(-0.5, len(taus) - 0.5)
    axes.grid(axis="x", visible=False)
    _finish(figure, section)
    return figure


def _finish(figure: "Figure", section: Section) -> None:
    """A title, and one legend below for all panels."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    columns = max(1, min(len(handles), int(figure.get_figwidth() / 2.1)))
    figure.legend(handles.values(), list(handles), loc="outside lower center", ncols=columns)
    figure.suptitle(f"{section.title}: {_BAND}", fontsize=9)


def _heat_map(section: Section) -> "Figure | None":
    """Final pass@1 of each row on each topic, at the largest tau."""
    from matplotlib import pyplot as plt

    largest = max(section.taus)
    rows = {
        label: row[largest]
        for (label, row), method in zip(topics(section).items(), section.methods, strict=True)
        if largest in row and row[largest] and method.mu is None
    }
    names = sorted({topic for row in rows.values() for topic in row})
    if not names:
        return None
    values = [
        [100 * row[name].mean if name in row else float("nan") for name in names]
        for row in rows.values()
    ]
    size = (3.2 + 0.75 * len(names), 1.5 + 0.32 * len(rows))
    figure: Figure
    figure, axes = plt.subplots(figsize=size)
    image = axes.imshow(values, cmap="cividis", aspect="auto", vmin=0, vmax=100)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            if value == value:
                color = "white" if value < 55 else "black"
                axes.text(x, y, f"{value:.0f}", ha="center", va="center", color=color, fontsize=8)
    axes.set_xticks(range(len(names)), names, rotation=35, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(rows)), list(rows))
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    figure.colorbar(image, ax=axes, label="final pass@1 (%)", fraction=0.05)
    figure.suptitle(f"{section.title}: by topic at τ = {largest}, mean over seeds", fontsize=9)
    return figure
