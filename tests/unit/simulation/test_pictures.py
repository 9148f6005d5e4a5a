"""The layout of the report's figures, and that their rows can be told apart."""

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt

from pubswap_simulation.reporting.contrasts import Contrast
from pubswap_simulation.reporting.estimates import paired
from pubswap_simulation.reporting.methods import BASE, Arm
from pubswap_simulation.reporting.pictures.curve import Curve
from pubswap_simulation.reporting.pictures.final import against_tau, arms, by_seed, heat_map
from pubswap_simulation.reporting.pictures.styles import (
    BLACK,
    SETTINGS,
    LineStyle,
    legend,
    line_styles,
    span,
)
from pubswap_simulation.reporting.section import Section, sections
from pubswap_simulation.results import Result, Value
from support.client.results import make_result, study


def panel_inches(rows: int) -> float:
    """The height of a panel above a legend with this many rows, in one column."""
    with mpl.rc_context(SETTINGS):
        figure, axes = plt.subplots(figsize=(5.5, 3.8))
        legend(figure, "made up", [("a label of " + "many " * 10, LineStyle(BLACK, "o"))] * rows)
        figure.draw_without_rendering()
        height: float = axes.get_position().height * figure.get_figheight()
        plt.close(figure)
    return height


def test_a_long_legend_leaves_the_panels_their_height() -> None:
    """A panel above fourteen rows is as high as one above three."""
    assert panel_inches(14) > 0.95 * panel_inches(3)


def test_no_two_rows_of_a_legend_look_alike() -> None:
    """Colour or marker differ, even with many periods and dozens of variants."""
    names = [("fedavg", None), ("fedprox", None), ("pubswap", "random"), ("pubswap", "keep")]
    rows = [
        Arm(name=name, strategy=strategy, period=period, variant=variant)
        for name, strategy in names
        for period in (2, 4, 8, 16, 32)
        for variant in ((), (("swap.donors", "likely"),), (("method.mode", "pipelined"),))
    ]
    looks = [(style.color, style.marker) for style in line_styles(rows).values()]
    assert len(set(looks)) == len(looks) == 60


def test_an_axis_shows_whole_intervals() -> None:
    """Including values below 0, but nothing below 0 if there are none."""
    assert span([Curve([1], [20.0], [-10.0], [50.0])]) == (-13.0, 53.0)
    assert span([Curve([1], [1.0], [0.0], [2.0])])[0] == 0.0


def test_a_line_at_0_is_off_the_axis() -> None:
    """For instance a row in which nothing is ever replaced."""
    low, high = span([Curve([1, 2], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0])])
    assert low < 0 < high
    assert span([Curve([1], [0.0], [0.0], [0.0]), Curve([1], [0.2], [0.2], [0.2])])[0] < 0


def test_the_papers_rows_have_one_colour_in_all_pictures() -> None:
    """Public steps without exchange are the same green among all rows as in the curves."""
    results = study(seeds=range(3))
    silent: dict[str, Value] = {"method": "pubswap", "method.strategy": "none"}
    results += [make_result([0.4, 0.5], 24, seed, setting=silent) for seed in range(3)]
    [section] = sections([r.model_copy(update={"setting": plain(r)}) for r in results])
    rows = [method for method in section.methods if method != BASE and not method.detail]
    styles = line_styles([method for method in rows if method.plain])
    with mpl.rc_context(SETTINGS):
        figure = arms(section)
    drawn = {
        round(line.get_ydata()[0]): line.get_color()
        for axes in figure.axes
        for line in axes.get_lines()
        if line.get_marker() == "o"
    }
    plt.close(figure)
    found = {method: drawn[place] for place, method in enumerate(rows) if method.plain}
    assert found == {method: style.color for method, style in styles.items()}
    assert len(set(drawn.values())) >= 7


def plain(result: Result) -> dict[str, Value]:
    """A result's setting without its alpha, so that all form one comparison."""
    return {axis: value for axis, value in result.setting.items() if not axis.startswith("data.")}


def test_points_stand_at_their_tau() -> None:
    """In every row, without horizontal offsets."""
    section = comparison()
    with mpl.rc_context(SETTINGS):
        figure = against_tau(section, [m for m in section.methods if m.kind == "federated"])
    lines = [line for line in figure.axes[0].get_lines() if len(line.get_xdata()) == 3]
    plt.close(figure)
    assert len(lines) >= 7
    assert {tuple(line.get_xdata()) for line in lines} == {(4, 12, 24)}


def test_every_row_is_shown_with_its_n_and_its_name_in_words() -> None:
    """There is a panel for each tau; in the heat map, cells have intervals and rows have n."""
    section = comparison()
    with mpl.rc_context(SETTINGS):
        figure, topics = arms(section), heat_map(section)
    assert topics is not None
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert "PubSwap-keep, period 2, decoupled donor ratio" in names
    assert not [name for name in names if "=" in name and "μ" not in name]
    texts = [text.get_text() for text in figure.axes[1].texts]
    assert len(texts) == len(names)
    assert all(text.endswith(", n 3") for text in texts)
    assert all(" ± " in text.get_text() for text in topics.axes[0].texts)
    assert all(label.get_text().endswith("n 3") for label in topics.axes[0].get_yticklabels())
    plt.close(figure)
    plt.close(topics)


def test_the_primary_contrast_is_a_dot_for_each_seed_and_their_mean() -> None:
    """In percentage points, with the interval below the last seed and zero in view."""
    values = {200: 0.02, 201: -0.01, 204: 0.005}
    difference = paired(values, dict.fromkeys(values, 0.0))
    assert difference is not None
    contrast = Contrast(**difference.model_dump(), contrast="a - b", tau=48, by_seed=values)
    with mpl.rc_context(SETTINGS):
        figure = by_seed(contrast)
    [axes] = figure.axes
    dots, mean = [line for line in axes.get_lines() if line.get_marker() in "oD"]
    assert list(dots.get_xdata()) == pytest.approx([2.0, -1.0, 0.5])
    assert list(mean.get_xdata()) == pytest.approx([0.5])
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "seed 200",
        "seed 201",
        "seed 204",
        "mean, 95 %",
    ]
    low, high = axes.get_xlim()
    assert difference.low is not None and difference.high is not None
    assert low < 100 * difference.low < 0 < 100 * difference.high < high
    plt.close(figure)


def comparison() -> Section:
    [section] = sections(study(seeds=range(3)))
    return section
