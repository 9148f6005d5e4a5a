"""How the report's pictures are laid out."""

import matplotlib as mpl
from matplotlib import pyplot as plt

from pubswap_simulation.reporting.plots import BLACK, SETTINGS, LineStyle, legend


def panel_inches(rows: int) -> float:
    """The height of a panel above a legend of so many rows, in one column."""
    with mpl.rc_context(SETTINGS):
        figure, axes = plt.subplots(figsize=(5.5, 3.8))
        legend(figure, "made up", [("a label of " + "many " * 10, LineStyle(BLACK, "o"))] * rows)
        figure.draw_without_rendering()
        height: float = axes.get_position().height * figure.get_figheight()
        plt.close(figure)
    return height


def test_a_long_legend_leaves_the_panels_their_height() -> None:
    """Fourteen rows take nothing from what three have above them."""
    assert panel_inches(14) > 0.95 * panel_inches(3)
