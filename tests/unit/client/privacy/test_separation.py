"""AUC, its interval, and detections at few false alarms, against brute-force counts."""

from itertools import combinations
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubswap_client.privacy.separation import auc, auc_interval, chance_of, true_positives

# Few distinct values, so that there are ties.
SCORES = st.lists(st.integers(-3, 3), min_size=1, max_size=30).map(np.array)


@given(SCORES, SCORES)
def test_auc_is_the_count_of_pairs(members: np.ndarray, others: np.ndarray) -> None:
    """A tie counts as half."""
    pairs = [(x > y) + (x == y) / 2 for x in members for y in others]
    assert auc(members, others) == pytest.approx(np.mean(pairs), abs=1e-12)


@given(SCORES, SCORES, st.sampled_from([0.01, 0.1, 0.3, 0.5]))
def test_found_is_the_best_threshold_s(
    members: np.ndarray, others: np.ndarray, share: float
) -> None:
    """Among all thresholds with no more false alarms than allowed."""
    counts = [
        np.sum(members > threshold)
        for threshold in [-9, *others]
        if np.mean(others > threshold) <= share
    ]
    assert true_positives(members, others, share) == max(counts)


@pytest.mark.parametrize(("members", "others"), [(20, 20), (35, 300), (500, 500)])
def test_the_interval_excludes_chance_exactly_when_the_mann_whitney_test_rejects(
    members: int, others: int
) -> None:
    """It excludes 0.5 at the same level as the test, without ties."""
    spread = ((members + others + 1) / (12 * members * others)) ** 0.5
    limit = NormalDist().inv_cdf(0.975) * spread
    for area in np.linspace(0, 1, 401):
        lower, upper = auc_interval(area, members, others, 0.95)
        assert 0 <= lower <= area <= upper <= 1
        assert (lower <= 0.5 <= upper) == (abs(area - 0.5) <= limit)


@pytest.mark.parametrize(("members", "others"), [(20, 20), (20, 200), (200, 200)])
@pytest.mark.parametrize("distance", [0.0, 0.5, 1.5, 3.0])
def test_the_interval_covers_the_truth_as_often_as_it_says(
    members: int, others: int, distance: float
) -> None:
    """Over 1,000 draws of normal scores, whose AUC is known."""
    truth = NormalDist().cdf(distance / 2**0.5)
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(1000):
        area = auc(rng.normal(distance, 1, members), rng.normal(0, 1, others))
        lower, upper = auc_interval(area, members, others, 0.95)
        covered += lower <= truth <= upper
    assert covered >= 930


def test_the_interval_has_a_width_where_all_members_are_above_all_others() -> None:
    """Twenty of each do not prove that this always holds."""
    lower, upper = auc_interval(1.0, 20, 20, 0.95)
    assert upper == 1.0 and 0.8 < lower < 0.95
    assert auc_interval(0.0, 20, 20, 0.95) == pytest.approx((0.0, 1 - lower))


@pytest.mark.parametrize(("members", "others", "share"), [(4, 3, 0.01), (3, 4, 0.3), (5, 2, 0.5)])
def test_chance_is_the_share_of_all_orders(members: int, others: int, share: float) -> None:
    """All placements of the members in the ranking are equally likely."""
    places = list(combinations(range(members + others), members))
    for wanted in range(members + 1):
        hits = 0
        for chosen in places:
            rest = [place for place in range(members + others) if place not in chosen]
            hits += true_positives(np.array(chosen), np.array(rest), share) >= wanted
        assert chance_of(wanted, members, others, share) == pytest.approx(hits / len(places))
