"""Plots by matplotlib, all with the same look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_NAMES = 24  # columns of a heat map that still have room for their names
_LOOK: dict[str, Any] = {
    "savefig.dpi": 150,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.titlesize": 9,
    "figure.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "errorbar.capsize": 2,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


@contextmanager
def look() -> Iterator[None]:
    """The look, for figures that are made, drawn and saved in this context."""
    import matplotlib

    with matplotlib.rc_context(_LOOK):
        yield


def save(figure: Figure, path: Path) -> None:
    """Write a PNG, with the same bytes for the same figure."""
    figure.savefig(path, format="png", metadata={"Software": None})


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    texts: Sequence[Sequence[str]],
    *,
    title: str,
    unit: str,
) -> Figure:
    """A table as colours, from 0 to the largest value; `texts` go into the cells.

    With more than 24 columns, they have numbers and the cells have no text.
    """
    from matplotlib.figure import Figure

    named = len(columns) <= MAX_NAMES
    width = 0.075 * max(map(len, rows)) + 1.4 + (0.9 if named else 0.1) * len(columns)
    figure = Figure(figsize=(min(max(width, 4.0), 24.0), 1.5 + 0.36 * len(rows)))
    axes = figure.add_subplot()
    largest = max(map(max, values))
    image = axes.imshow(values, cmap="Blues", aspect="auto", vmin=0, vmax=largest)
    for y, row in enumerate(texts if named else ()):
        for x, text in enumerate(row):
            dark = values[y][x] > 0.6 * largest
            axes.text(x, y, text, ha="center", va="center", fontsize=7, color="w" if dark else "k")
    if named:
        # A topic may contain a dollar sign that does not begin a formula.
        how: dict[str, Any] = {
            "rotation": 35,
            "ha": "right",
            "rotation_mode": "anchor",
            "parse_math": False,
        }
        axes.set_xticks(range(len(columns)), columns, **how)
    axes.set_yticks(range(len(rows)), rows)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    figure.colorbar(image, ax=axes, label=unit, fraction=0.05)
    figure.suptitle(title)
    return figure
