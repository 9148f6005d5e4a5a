"""What it costs to reach a pass@1, against figures by hand."""

import pytest

from pubswap_simulation.reporting.costs import traffic
from pubswap_simulation.reporting.reach import reach
from pubswap_simulation.reporting.section import sections
from support.client.results import made_result


def test_the_cost_is_that_of_the_first_round_that_has_it() -> None:
    """Means over seeds, where every seed gets there; else only how many do."""
    fedavg = {"method": "fedavg"}
    results = [
        made_result(scores, 4, seed, setting=fedavg)
        for seed, scores in enumerate([[0.3, 0.41, 0.39, 0.5], [0.3, 0.3, 0.4, 0.42]])
    ]
    [section] = sections(results)
    low, middle, high = reach(section)
    assert [cell.target for cell in (low, middle, high)] == [0.35, 0.4, 0.45]
    for cell in (low, middle):
        assert (cell.rounds, cell.n, cell.reached) == (1.5, 2, 2)
        assert cell.bytes_of_a_client == pytest.approx(1.5 * traffic(results[0].run).all)
        assert cell.seconds == pytest.approx((10 / 3 + 11 * 2 / 3) / 2)
    assert (high.reached, high.rounds, high.bytes_of_a_client) == (1, None, None)
