"""All pictures of a comparison as PNGs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pubswap_simulation.reporting.contrasts import Contrast
from pubswap_simulation.reporting.methods import BASE, FEDAVG, Arm
from pubswap_simulation.reporting.pictures import final, steps
from pubswap_simulation.reporting.pictures.styles import SETTINGS, line_styles
from pubswap_simulation.reporting.section import Section

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Drawn = tuple[str, str, Figure]  # kind, suffix of the file's name, and the picture


@dataclass(frozen=True)
class Picture:
    """A PNG: its file name, its kind, and a caption."""

    name: str
    kind: str
    caption: str


_CAPTIONS = {
    "primary": "The primary contrast, seed by seed",
    "arms": "Final pass@1 of every row",
    "final": "Final pass@1 against τ",
    "curves": "pass@1 over GRPO steps",
    "drift": "Drift between clients over GRPO steps",
    "replaced": "Replaced share over GRPO steps",
    "rewards": "Mean reward of own responses over GRPO steps",
    "clients": "Mean reward of own responses by client",
    "topics": "Final pass@1 by topic",
}


def draw(section: Section, folder: Path, prefix: str) -> list[Picture]:
    """Write the PNGs of a section, each name beginning with `prefix`."""
    return _saved(_figures(section), folder, prefix)


def draw_contrast(contrast: Contrast, folder: Path) -> list[Picture]:
    """Write the PNG of the contrast named before the runs."""
    return _saved((("primary", "", final.by_seed(one)) for one in (contrast,)), folder, "")


def _saved(figures: Iterator["Drawn"], folder: Path, prefix: str) -> list[Picture]:
    """Save the figures; `figures` is lazy, so each is drawn with our matplotlib settings."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    pictures = []
    with matplotlib.rc_context(SETTINGS):
        for kind, suffix, figure in figures:
            picture = Picture(f"{prefix}{kind}{suffix}.png", kind, _CAPTIONS[kind])
            figure.savefig(folder / picture.name, metadata={"Software": None})
            plt.close(figure)
            pictures.append(picture)
    return pictures


def _figures(section: Section) -> Iterator["Drawn"]:
    yield "arms", "", final.arms(section)
    for suffix, methods in _groups(section):
        styles = line_styles(methods)
        over_tau = [method for method in methods if len(section.cells[method]) > 1]
        if over_tau and not suffix:
            yield "final", suffix, final.against_tau(section, over_tau)
        for plot in steps.PLOTS:
            if panels := steps.by_tau(section, methods, plot):
                yield plot.name, suffix, plot.draw(section.title, styles, panels)
        if not suffix and (panels := steps.by_client(section, methods)):
            title = f"{section.title}, τ = {max(section.taus)}"
            yield "clients", "", replace(steps.REWARDS, name="clients").draw(title, styles, panels)
    if (heat_map := final.heat_map(section)) is not None:
        yield "topics", "", heat_map


def _groups(section: Section) -> Iterator[tuple[str, list[Arm]]]:
    """The rows of each picture: the paper's; and rows beyond the paper, with two of its own."""
    rows = [method for method in section.methods if method != BASE and not method.detail]
    plain = [method for method in rows if method.plain]
    varied = [method for method in rows if not method.plain]
    if plain:
        yield "", plain
    if varied:
        keep = [method for method in plain if method.strategy == "keep"][:1]
        yield "-beyond", [m for m in plain if m in (FEDAVG, *keep)] + varied
