"""What the report's plots show, and that their rows can be told apart."""

from collections.abc import Iterator

import pytest

from pubswap_client import plots
from pubswap_simulation.reporting.contrasts import Contrast
from pubswap_simulation.reporting.estimates import Difference
from pubswap_simulation.reporting.methods import Row
from pubswap_simulation.reporting.plots import curves, finals, forest, line_styles
from pubswap_simulation.reporting.section import Section, sections
from support.client.results import ADAPTER_BYTES, make_result, study

FEDAVG = {"method": "fedavg"}
STYLES = line_styles([Row()])


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


def test_no_two_rows_of_a_legend_look_alike() -> None:
    """Colour or marker differ, even with many periods and dozens of variants."""
    names = [("fedavg", None), ("fedprox", None), ("pubswap", "random"), ("pubswap", "keep")]
    rows = [
        Row(name=name, strategy=strategy, period=period, variant=variant)
        for name, strategy in names
        for period in (2, 4, 8, 16, 32)
        for variant in ((), (("swap.donors", "likely"),), (("method.mode", "pipelined"),))
    ]
    looks = [(style["color"], style["marker"]) for style in line_styles(rows).values()]
    assert len(set(looks)) == len(looks) == 60


def test_every_row_is_shown_with_its_n_and_its_name_in_words(section: Section) -> None:
    """At each tau that it has."""
    axes = finals(section, line_styles(section.rows)).axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert len(set(names)) == len(section.cells)
    assert "PubSwap-keep, period 2, decoupled donor ratio, τ 12" in names
    assert not [name for name in names if "=" in name and "μ" not in name]
    texts = [text.get_text() for text in axes.texts]
    assert len(texts) == len(names)
    assert all(text.endswith(", n 3") for text in texts)


def test_curves_are_the_means_over_the_seeds_by_steps_and_by_bytes() -> None:
    """Step 0 is the base model; bytes are one client's until then, on a scale without 0."""
    scores = [[0.4, 0.5 + 0.1 * seed, 0.7] for seed in range(3)]
    [section] = sections(
        make_result(each, 4, seed, setting=FEDAVG) for seed, each in enumerate(scores)
    )
    by_steps, by_bytes = (axes.get_lines()[0] for axes in curves(section, STYLES).axes)
    assert list(by_steps.get_xdata()) == [0, 4, 8]
    assert list(by_steps.get_ydata()) == pytest.approx([40, 60, 70])
    sent = 2 * ADAPTER_BYTES / 1e6
    assert list(by_bytes.get_xdata()) == pytest.approx([sent, 2 * sent])
    assert list(by_bytes.get_ydata()) == pytest.approx([60, 70])


def test_a_round_that_a_seed_has_not_evaluated_is_not_drawn() -> None:
    """Its mean would be over other seeds than the next one's."""
    first, second = (make_result([0.4, 0.5, 0.6], 4, seed, setting=FEDAVG) for seed in (0, 1))
    rounds = [first.run.rounds[0], first.run.rounds[2]]
    first = first.model_copy(update={"run": first.run.model_copy(update={"rounds": rounds})})
    [section] = sections([first, second])
    assert list(curves(section, STYLES).axes[0].get_lines()[0].get_xdata()) == [0, 8]


def test_a_row_without_any_seed_of_all_its_clients_is_not_drawn() -> None:
    """Nothing fails during a sweep in which the second client has not run yet."""
    alone = [make_result([0.4, 0.5], 4, 0, members="alone", client="client-1")]
    alone.append(make_result([0.4, 0.5], 4, 1, members="alone", client="client-2"))
    [section] = sections(alone)
    styles = line_styles(section.rows)
    assert not list(curves(section, styles).axes[0].get_lines()[0].get_xdata())
    assert not finals(section, styles).axes[0].get_yticklabels()


def test_two_seeds_have_no_interval() -> None:
    """Its half width, 12.7 standard errors, would hide everything else; the tables have it."""
    results = (make_result([0.4, 0.5 + 0.1 * seed], 4, seed, setting=FEDAVG) for seed in range(2))
    [section] = sections(results)
    lowest, highest = curves(section, STYLES).axes[0].get_ylim()
    assert 30 < lowest < 40 and 55 < highest < 60


def test_a_contrast_is_a_dot_for_each_seed_and_their_mean() -> None:
    """In percentage points, with zero in view; the exploratory ones have a panel of their own."""
    contrast = Contrast("a - b", 48, Difference({200: 0.02, 201: -0.01, 204: 0.005}))
    [axes] = forest(contrast, []).axes
    dots, mean = [line for line in axes.get_lines() if line.get_marker() in "oD"]
    assert list(dots.get_xdata()) == pytest.approx([2.0, -1.0, 0.5])
    assert list(mean.get_xdata()) == pytest.approx([0.5])
    half = contrast.difference.half_width
    assert half is not None
    low, high = axes.get_xlim()
    assert low < 0.5 - 100 * half < 0 < 0.5 + 100 * half < high
    names = [
        [label.get_text() for label in axes.get_yticklabels()]
        for axes in forest(contrast, [Contrast("… - c", 48, contrast.difference)]).axes
    ]
    assert names == [["a\n - b"], ["… - c"]]
