"""How every picture looks. The colours are Okabe and Ito's, which colour-blind people can tell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pubswap_simulation.reporting.methods import Method

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
