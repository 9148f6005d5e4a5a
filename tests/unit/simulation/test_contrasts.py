"""The primary contrast and the exploratory ones, against scipy's tests and hand calculations."""

import pytest
from scipy import stats

from pubswap_protocol.draws import rng_for
from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.reporting.contrasts import contrasts
from pubswap_simulation.reporting.estimates import holm
from pubswap_simulation.reporting.section import sections
from pubswap_simulation.results import Result, Value
from support.client.results import make_result

KEEP: dict[str, Value] = {"method": "pubswap", "method.strategy": "keep", "method.period": 2}
NONE: dict[str, Value] = KEEP | {"method.strategy": "none"}
RANDOM: dict[str, Value] = KEEP | {"method.strategy": "random"}
FEDAVG: dict[str, Value] = {"method": "fedavg"}
PRIMARY = "PubSwap-keep, period 2 - public steps without exchange, period 2"


def scores(setting: dict[str, Value], seeds: int) -> list[float]:
    rng = rng_for(1, "contrasts", str(setting))
    return [float(0.5 + value) for value in rng.normal(0.02 * len(setting), 0.03, seeds)]


def runs(setting: dict[str, Value], seeds: int, tau: int = 12) -> list[Result]:
    return [
        make_result([0.4, score], tau, seed, setting=setting)
        for seed, score in enumerate(scores(setting, seeds))
    ]


def test_the_primary_contrast_is_scipys_paired_t_test() -> None:
    """Over the seeds that both rows have, at the largest tau for which both have any."""
    results = runs(KEEP, 10) + runs(NONE, 8) + runs(KEEP, 3, tau=4) + runs(NONE, 3, tau=4)
    primary, _ = contrasts(sections([*results, *runs(KEEP, 2, tau=24)]), PRIMARY)
    expected = stats.ttest_rel(scores(KEEP, 10)[:8], scores(NONE, 8))
    low, high = expected.confidence_interval(0.95)
    found = primary.difference
    assert (primary.name, primary.tau, found.n) == (PRIMARY, 12, 8)
    apart = [ours - none for ours, none in zip(scores(KEEP, 8), scores(NONE, 8), strict=True)]
    assert found.by_seed == pytest.approx(dict(enumerate(apart)))
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert found.half_width == pytest.approx((high - low) / 2)
    assert primary.corrected is None


def test_the_largest_tau_of_all_sections_counts() -> None:
    """Another section with both rows may come first."""
    short = [
        make_result([0.4, 0.5], 8, seed, recipe="a", setting=setting)
        for setting in (KEEP, NONE)
        for seed in range(3)
    ]
    primary, _ = contrasts(sections(short + runs(KEEP, 2) + runs(NONE, 2)), PRIMARY)
    assert (primary.tau, primary.difference.n) == (12, 2)


def test_rows_may_have_different_taus() -> None:
    """Each is named with its own; all others are compared at the first one's."""
    results = runs(KEEP, 3) + runs(FEDAVG, 3) + runs(FEDAVG, 2, tau=4) + runs(RANDOM, 3)
    named = "PubSwap-keep, period 2, τ 12 - FedAvg, τ 4"
    primary, others = contrasts(sections(results), named)
    expected = [a - b for a, b in zip(scores(KEEP, 2), scores(FEDAVG, 2), strict=True)]
    assert (primary.name, primary.tau) == (named, 12)
    assert primary.difference.by_seed == pytest.approx(dict(enumerate(expected)))
    assert [(one.name, one.tau) for one in others] == [("… - PubSwap-random, period 2", 12)]


def test_all_others_are_corrected_by_holm() -> None:
    """Each compares the contrast's first row with another over shared seeds."""
    results = runs(KEEP, 10) + runs(NONE, 10) + runs(RANDOM, 10) + runs(FEDAVG, 6)
    _, found = contrasts(sections(results), PRIMARY)
    assert [one.name for one in found] == ["… - FedAvg", "… - PubSwap-random, period 2"]
    keep = scores(KEEP, 10)
    p_values = [
        stats.ttest_rel(keep[:6], scores(FEDAVG, 6)).pvalue,
        stats.ttest_rel(keep, scores(RANDOM, 10)).pvalue,
    ]
    assert [one.difference.p_value for one in found] == pytest.approx(p_values)
    small, large = min(p_values), max(p_values)
    corrected = {small: 2 * small, large: max(2 * small, large)}
    assert [one.corrected for one in found] == pytest.approx([corrected[p] for p in p_values])


def test_holms_correction_is_that_of_the_textbook() -> None:
    """From the smallest, times m, m - 1, ...; never below an earlier one and never above 1."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize("named", ["FedAvg - PubSwap-keep, period 2", "nothing", "FedAvg - "])
def test_a_contrast_of_missing_rows_is_refused(named: str) -> None:
    """The message lists the existing rows."""
    with pytest.raises(InvalidSettings, match=r"There are: FedAvg\."):
        contrasts(sections(runs(FEDAVG, 2)), named)
