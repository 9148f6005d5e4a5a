"""Means with intervals, and differences paired by seed, against hand calculations."""

import math
from statistics import mean, stdev

import pytest

from pubswap_simulation.reporting.estimates import Estimate, paired, t_quantile
from pubswap_simulation.reporting.page import grid


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [
        (1, 12.7062),
        (2, 4.3027),
        (3, 3.1824),
        (4, 2.7764),
        (9, 2.2622),
        (30, 2.0423),
        (1000, 1.9623),
    ],
)
def test_quantiles_are_those_of_the_printed_table(freedom: int, quantile: float) -> None:
    """Student's t, two-sided 95 %, to the table's four digits."""
    assert t_quantile(freedom) == pytest.approx(quantile, abs=5e-5)


def test_the_density_between_the_quantiles_is_95_percent() -> None:
    """Summed over the density itself, which only needs the gamma function."""
    freedom, steps = 4, 20_000
    end = t_quantile(freedom)
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
    width = 2 * end / steps
    middles = (-end + (place + 0.5) * width for place in range(steps))
    area = sum(scale * (1 + t * t / freedom) ** (-(freedom + 1) / 2) * width for t in middles)
    assert area == pytest.approx(0.95, abs=1e-6)


def test_an_interval_is_the_mean_and_t_standard_errors() -> None:
    """For n = 5, 2.7764 standard errors on either side."""
    values = [0.5, 0.52, 0.47, 0.55, 0.49]
    found = Estimate(dict(enumerate(values)))
    assert (found.n, found.mean) == (5, pytest.approx(mean(values)))
    assert found.half_width == pytest.approx(2.776445 * stdev(values) / math.sqrt(5), abs=1e-7)


def test_one_seed_has_neither_an_interval_nor_a_p_value() -> None:
    """Nor have identical values a p-value."""
    alone = Estimate({3: 0.4})
    assert (alone.n, alone.mean, alone.half_width, alone.p_value) == (1, 0.4, None, None)
    assert Estimate({0: 0.1, 1: 0.1, 2: 0.1}).p_value is None


def test_differences_are_paired_by_seed() -> None:
    """Seeds missing on one side do not count; a common shift has a narrow interval."""
    theirs = {0: 0.1, 1: 0.5, 2: 0.9, 3: 0.3, 8: 0.0}
    ours = {seed: value + 0.02 for seed, value in theirs.items() if seed != 8} | {7: 1.0}
    ours[2] += 0.01
    found = paired(ours, theirs)
    assert found is not None
    assert (found.n, found.mean, found.signs) == (4, pytest.approx(0.0225), "4/0/0")
    # The four are 0.02, 0.02, 0.03, 0.02: s = 0.005.
    assert found.half_width == pytest.approx(3.182446 * 0.005 / 2, abs=1e-7)
    assert paired({1: 0.0}, {2: 0.0}) is None


def test_figures_are_in_per_cent_or_have_the_digits_of_their_interval() -> None:
    """n follows in brackets; a difference has its sign, and how many seeds have which."""
    share = {0: 0.46, 1: 0.47, 2: 0.49}
    assert Estimate(share).text() == "47.3 ± 3.8 (3)"
    assert Estimate({seed: 10 * value for seed, value in share.items()}).text(share=False) == (
        "4.73 ± 0.38 (3)"
    )
    assert Estimate({0: 0.5}).text() == "50.0 (1)"
    difference = paired({0: 0.52, 1: 0.53, 2: 0.5}, dict.fromkeys(range(3), 0.5))
    assert difference is not None
    assert difference.text() == "+1.7 ± 3.8 (3: 2/1/0)"
    assert difference.interval == "-2.1 to +5.5"


def test_signs_are_counted_beyond_rounding() -> None:
    """0.1 + 0.2 equals 0.3, whatever the last bit."""
    found = paired({0: 0.1 + 0.2, 1: 0.5, 2: 0.2}, {0: 0.3, 1: 0.4, 2: 0.4})
    assert found is not None
    assert found.signs == "1/1/1"


def test_a_cell_of_any_text_is_one_cell() -> None:
    """A topic with a vertical bar or a line break does not break the table."""
    table = grid(["", "a|b", "two\nlines"], [["row", "1", "2"]])
    assert table.splitlines() == [
        r"|  | a\|b | two lines |",
        "| --- | ---: | ---: |",
        "| row | 1 | 2 |",
    ]
