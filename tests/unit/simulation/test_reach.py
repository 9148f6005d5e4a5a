"""The cost of reaching a pass@1, against hand calculations."""

import pytest

from pubswap_simulation.reporting.costs import costs_to_target, traffic
from pubswap_simulation.reporting.markdown import markdown
from pubswap_simulation.reporting.report import make_report
from pubswap_simulation.reporting.section import sections
from pubswap_simulation.results import Value
from support.client.results import make_result


def test_the_cost_is_that_of_the_first_round_that_reaches_it() -> None:
    """It is a mean over seeds if all of them get there, and otherwise only their number."""
    fedavg = {"method": "fedavg"}
    results = [
        make_result(scores, 4, seed, setting=fedavg)
        for seed, scores in enumerate([[0.3, 0.41, 0.39, 0.5], [0.3, 0.3, 0.4, 0.42]])
    ]
    [section] = sections(results)
    low, middle, high = costs_to_target(section)
    assert [cell.target for cell in (low, middle, high)] == [0.35, 0.4, 0.45]
    for cell in (low, middle):
        assert (cell.rounds, cell.n, cell.reached) == (1.5, 2, 2)
        assert cell.bytes_of_a_client == pytest.approx(1.5 * sum(traffic(results[0].run).values()))
        assert cell.seconds == pytest.approx((10 / 3 + 11 * 2 / 3) / 2)
    assert (high.reached, high.rounds, high.bytes_of_a_client) == (1, None, None)


def test_costs_of_responses_without_exchange_are_explained() -> None:
    """Public steps without exchange still send responses; seconds are wall-clock time."""
    silent: dict[str, Value] = {"method": "pubswap", "method.strategy": "none"}
    keep: dict[str, Value] = {"method": "pubswap"}
    found = [make_result([0.3, 0.4], 4, setting=setting) for setting in (keep, silent)]
    text = markdown(make_report(sections(found)), {}, {})
    # Two public steps: 100 bytes up and 50 down for each, as make_result has them.
    assert "| public steps without exchange, period 2 | 4 | 1 |" in text
    assert "| 200 bytes | 100 bytes |" in text
    assert "Public steps without exchange send responses" in text
    assert "wall-clock time" in text
    assert "without exchange" not in markdown(make_report(sections(found[:1])), {}, {})
