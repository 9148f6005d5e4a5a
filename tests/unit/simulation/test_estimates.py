"""Means with intervals, and differences paired by seed, against hand calculations."""

import math
from statistics import StatisticsError, mean, stdev

import pytest

from pubswap_simulation.reporting.estimates import estimate, paired, t_quantile
from pubswap_simulation.reporting.markdown import grid


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
    found = estimate(values)
    half = 2.776445 * stdev(values) / math.sqrt(5)
    assert (found.n, found.mean) == (5, pytest.approx(mean(values)))
    assert found.low == pytest.approx(mean(values) - half, abs=1e-7)
    assert found.high == pytest.approx(mean(values) + half, abs=1e-7)


def test_one_seed_has_no_interval_and_none_no_mean() -> None:
    """Nothing is invented without data."""
    alone = estimate([0.4])
    assert (alone.n, alone.mean, alone.low, alone.half_width) == (1, 0.4, None, None)
    with pytest.raises(StatisticsError):
        estimate([])


def test_differences_are_paired_by_seed() -> None:
    """Seeds missing on one side do not count; a common shift has a narrow interval."""
    theirs = {0: 0.1, 1: 0.5, 2: 0.9, 3: 0.3, 8: 0.0}
    ours = {seed: value + 0.02 for seed, value in theirs.items() if seed != 8} | {7: 1.0}
    ours[2] += 0.01
    found = paired(ours, theirs)
    assert found is not None and found.low is not None and found.high is not None
    assert (found.n, found.mean) == (4, pytest.approx(0.0225))
    half = 3.182446 * 0.005 / 2  # the four are 0.02, 0.02, 0.03, 0.02: s = 0.005
    assert (found.low, found.high) == (
        pytest.approx(0.0225 - half, abs=1e-7),
        pytest.approx(0.0225 + half, abs=1e-7),
    )
    assert (found.above, found.equal, found.below) == (4, 0, 0)
    assert paired({1: 0.0}, {2: 0.0}) is None


def test_signs_are_counted_beyond_rounding() -> None:
    """0.1 + 0.2 equals 0.3, whatever the last bit."""
    found = paired({0: 0.1 + 0.2, 1: 0.5, 2: 0.2}, {0: 0.3, 1: 0.4, 2: 0.4})
    assert found is not None
    assert (found.above, found.equal, found.below) == (1, 1, 1)


def test_a_cell_of_any_text_is_one_cell() -> None:
    """A topic with a vertical bar or a line break does not break the table."""
    table = grid(["", "a|b", "two\nlines"], [["row", "1", "2"]])
    assert table.splitlines() == [
        r"|  | a\|b | two lines |",
        "| --- | ---: | ---: |",
        "| row | 1 | 2 |",
    ]
