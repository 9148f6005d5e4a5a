"""Plots by matplotlib, all with the same look."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
