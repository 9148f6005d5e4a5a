"""The layout of the report's figures, and that their rows can be told apart."""

from collections.abc import Iterator

import pytest

from pubswap_client import plots
from pubswap_simulation.reporting.contrasts import Contrast
from pubswap_simulation.reporting.estimates import paired
from pubswap_simulation.reporting.methods import Arm
from pubswap_simulation.reporting.plots import (
    by_seed,
    by_topic,
    curves,
    final,
    line_styles,
    shown,
)
from pubswap_simulation.reporting.section import Section, sections
from support.client.results import make_result, study


@pytest.fixture(autouse=True)
def look() -> Iterator[None]:
    """The report's own, as when it is written."""
    with plots.look():
        yield


@pytest.fixture(scope="module")
def section() -> Section:
    """A comparison of many rows at three taus."""
    [section] = sections(study(seeds=range(3)))
    return section


def panel_inches(section: Section, rows: list[Arm]) -> float:
    """The height of the lowest panel above a legend with these rows."""
    figure = curves(section, rows, line_styles(rows))
    figure.draw_without_rendering()
    return figure.axes[-1].get_position().height * figure.get_figheight()


def test_a_long_legend_leaves_the_panels_their_height(section: Section) -> None:
    """A panel above all rows is nearly as high as one above a single row."""
    rows = [row for row in shown(section) if row.kind == "federated"]
    assert len(rows) >= 7
    assert panel_inches(section, rows) > 0.9 * panel_inches(section, rows[-1:])


def test_no_two_rows_of_a_legend_look_alike() -> None:
    """Colour or marker differ, even with many periods and dozens of variants."""
    names = [("fedavg", None), ("fedprox", None), ("pubswap", "random"), ("pubswap", "keep")]
    rows = [
        Arm(name=name, strategy=strategy, period=period, variant=variant)
        for name, strategy in names
        for period in (2, 4, 8, 16, 32)
        for variant in ((), (("swap.donors", "likely"),), (("method.mode", "pipelined"),))
    ]
    looks = [(style["color"], style["marker"]) for style in line_styles(rows).values()]
    assert len(set(looks)) == len(looks) == 60


def test_the_papers_rows_have_colours_of_their_own(section: Section) -> None:
    """Up to eight; variants of them share colours."""
    styles = line_styles(shown(section))
    plain = [style["color"] for row, style in styles.items() if row.plain]
    assert len(set(plain)) == len(plain) == 7


def test_every_row_is_shown_with_its_n_and_its_name_in_words(section: Section) -> None:
    """There is a panel for each tau; in the heat map, cells have intervals and rows have n."""
    figure, topics = final(section, line_styles(shown(section))), by_topic(section)
    assert topics is not None
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert "PubSwap-keep, period 2, decoupled donor ratio" in names
    assert not [name for name in names if "=" in name and "μ" not in name]
    texts = [text.get_text() for text in figure.axes[1].texts]
    assert len(texts) == len(names)
    assert all(text.endswith(", n 3") for text in texts)
    assert all(" ± " in text.get_text() for text in topics.axes[0].texts)
    assert all(label.get_text().endswith("n 3") for label in topics.axes[0].get_yticklabels())


def test_curves_are_the_means_of_each_series_over_the_steps(section: Section) -> None:
    """A row of panels for each of pass@1, drift, alpha and rewards; a column for each tau."""
    rows = [row for row in shown(section) if row.label == "PubSwap-keep, period 2"]
    figure = curves(section, rows, line_styles(rows))
    assert len(figure.axes) == 4 * 3
    [pass_at_1] = figure.axes[0].get_lines()
    results = [section.cells[rows[0], 4][seed][0] for seed in range(3)]
    scores = zip(*([each.pass_at_1 for each in one.evaluations] for one in results), strict=True)
    assert list(pass_at_1.get_xdata()) == [0, 4, 8, 12, 16, 20, 24]
    assert list(pass_at_1.get_ydata()) == pytest.approx([100 * sum(each) / 3 for each in scores])
    alone = [row for row in shown(section) if row.kind == "alone"]
    assert len(curves(section, alone, line_styles(alone)).axes) == 2 * 3, "one client: no drift"


def test_a_single_round_is_drawn_as_error_bars_side_by_side() -> None:
    """A band over one step would be invisible."""
    settings = ({"method": "fedavg"}, {"method": "pubswap"})
    [section] = sections(
        make_result([0.4, 0.5 + 0.01 * seed], 24, seed, setting=setting, drift=1.0 + seed)
        for setting in settings
        for seed in range(3)
    )
    rows = shown(section)
    drift = curves(section, rows, line_styles(rows)).axes[1]
    assert len(drift.containers) == 2
    left, right = (float(bars.lines[0].get_xdata()[0]) for bars in drift.containers)
    assert 20 < left < 24 < right < 28


def test_two_seeds_have_no_band() -> None:
    """Its half width, 12.7 standard errors, would hide everything else; the tables have it."""
    [section] = sections(make_result([0.4, 0.5 + 0.1 * seed], 4, seed) for seed in range(2))
    rows = shown(section)
    lowest, highest = curves(section, rows, line_styles(rows)).axes[0].get_ylim()
    assert 30 < lowest < 40 and 55 < highest < 60


def test_the_primary_contrast_is_a_dot_for_each_seed_and_their_mean() -> None:
    """In percentage points, with the interval below the last seed and zero in view."""
    values = {200: 0.02, 201: -0.01, 204: 0.005}
    difference = paired(values, dict.fromkeys(values, 0.0))
    assert difference is not None
    contrast = Contrast(**difference.model_dump(), contrast="a - b", tau=48, by_seed=values)
    [axes] = by_seed(contrast).axes
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
