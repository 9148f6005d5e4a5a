"""Verdicts on the paper's claims, from made-up results for, against, and undecided."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from pubswap_protocol.draws import rng_for
from pubswap_simulation.reporting.claims import ClaimResult, Verdict, findings, verdict
from pubswap_simulation.reporting.estimates import Difference, paired
from pubswap_simulation.reporting.section import sections
from pubswap_simulation.results import Result, Value
from support.client.results import make_result

FEDAVG: Mapping[str, Value] = {"method": "fedavg"}
KEEP: Mapping[str, Value] = {"method": "pubswap", "method.strategy": "keep", "method.period": 2}
RANDOM: Mapping[str, Value] = {"method": "pubswap", "method.strategy": "random", "method.period": 2}
PROX: Mapping[str, Value] = {"method": "fedprox", "method.mu": 0.01}
MOMENTUM: Mapping[str, Value] = {"aggregation.server_optimizer": "momentum", "method": "fedavg"}


def runs(setting: Mapping[str, Value], tau: int, final: float, drift: float = 1.0) -> list[Result]:
    """Five seeds around this final pass@1 and drift."""
    results = []
    for seed in range(5):
        noise = rng_for(seed, "claims", str(setting), tau).normal(0, 0.003, 2)
        scores = [0.4, final + float(noise[0])]
        apart = drift + float(noise[1])
        results.append(make_result(scores, tau, seed, setting=setting, drift=apart))
    return results


def found(results: Sequence[Result], words: str) -> list[ClaimResult]:
    (section,) = sections(results)
    return [finding for finding in findings(section) if words in finding.claim]


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference:
    found = paired(ours, theirs)
    assert found is not None
    return found


def as_in_the_paper() -> list[Result]:
    return [
        *runs(FEDAVG, 4, 0.70, drift=1.0),
        *runs(FEDAVG, 24, 0.60, drift=4.0),
        *runs(KEEP, 4, 0.71, drift=0.9),
        *runs(KEEP, 24, 0.70, drift=2.0),
        *runs(RANDOM, 4, 0.75, drift=0.8),
        *runs(RANDOM, 24, 0.55, drift=1.5),
        *runs(PROX, 4, 0.68),
        *runs(PROX, 24, 0.57),
        *runs(MOMENTUM, 4, 0.74),
    ]


def turned_over() -> list[Result]:
    return [
        *runs(FEDAVG, 4, 0.60, drift=1.0),
        *runs(FEDAVG, 24, 0.70, drift=1.0),
        *runs(KEEP, 4, 0.64, drift=2.0),
        *runs(KEEP, 24, 0.60, drift=2.0),
        *runs(RANDOM, 4, 0.55, drift=3.0),
        *runs(RANDOM, 24, 0.75, drift=3.0),
        *runs(PROX, 4, 0.66),
        *runs(PROX, 24, 0.76),
        *runs(MOMENTUM, 4, 0.50),
    ]


CLAIMS = [
    "keep is better than FedAvg at the largest",
    "keep is better than FedProx at the largest",
    "keep's gain over FedAvg is larger at the largest",
    "random is better than FedAvg at the smallest",
    "random is better than keep at the smallest",
    "random is worse than keep at the largest",
    "clients drift less",
    "FedAvg falls",
    "FedProx, with its μ chosen, is worse than FedAvg",
    "a server optimizer helps at the smallest",
]


@pytest.mark.parametrize("words", CLAIMS)
@pytest.mark.parametrize(
    ("made", "expected"), [(as_in_the_paper, "holds"), (turned_over, "does not")]
)
def test_each_claim_is_told_from_its_opposite(
    words: str, made: Callable[[], list[Result]], expected: Verdict
) -> None:
    """It holds for results as in the paper, and does not for reversed ones."""
    judged = found(made(), words)
    assert judged
    assert {finding.verdict for finding in judged} == {expected}
    assert all(finding.difference.n == 5 for finding in judged)


def test_fewer_replaced_later_is_read_off_the_public_steps() -> None:
    """A constant share is undecided; a falling one holds."""
    steady = [*runs(FEDAVG, 24, 0.6), *runs(KEEP, 24, 0.7)]
    (finding,) = found(steady, "fewer responses")
    assert finding.verdict == "undecided"
    falling = [_falling(result) for result in steady]
    (finding,) = found(falling, "fewer responses")
    assert finding.verdict == "holds"
    # Twelve public steps: alpha is 0.5 - 0.04 i for both clients; i = 1.5 and 9.5 on average.
    assert finding.difference.mean == pytest.approx(-0.32, abs=0.01)


def test_there_are_no_claims_about_missing_rows() -> None:
    """There is no claim about a method or tau without results, and none without FedAvg."""
    assert found(runs(FEDAVG, 24, 0.6), "") == []
    assert found(runs(KEEP, 24, 0.6), "") == []
    compared = found([*runs(FEDAVG, 24, 0.6), *runs(KEEP, 24, 0.7)], "")
    assert {finding.claim for finding in compared} == {
        "keep is better than FedAvg at the largest τ",
        "clients drift less with public steps",
        "fewer responses are replaced later in training",
    }
    at_two = [*runs(FEDAVG, 4, 0.7), *runs(FEDAVG, 24, 0.6), *runs(KEEP, 24, 0.7)]
    assert found(at_two, "FedAvg falls")
    assert found(at_two, "gain") == []


def test_an_interval_that_covers_zero_or_one_seed_decides_nothing() -> None:
    """Whatever the mean."""
    wide = difference({0: 0.9, 1: 0.4, 2: 0.6}, {0: 0.5, 1: 0.5, 2: 0.5})
    assert verdict(wide, 1) == verdict(wide, -1) == "undecided"
    assert verdict(difference({0: 0.9}, {0: 0.1}), 1) == "undecided"
    clear = difference({0: 0.9, 1: 0.91, 2: 0.92}, {0: 0.5, 1: 0.5, 2: 0.5})
    assert (verdict(clear, 1), verdict(clear, -1)) == ("holds", "does not")


def test_agreement_by_chance_decides_nothing() -> None:
    """Two seeds, or any number, with the very same difference give an interval without width."""
    two = difference({0: 0.43, 1: 0.38}, {0: 0.4, 1: 0.35})
    same = difference({0: 0.5, 1: 0.5, 2: 0.5}, {0: 0.25, 1: 0.25, 2: 0.25})
    assert verdict(two, 1) == verdict(two, -1) == verdict(same, 1) == "undecided"


def _falling(result: Result) -> Result:
    """The result with alpha falling by 0.04 per public step, a little less for larger seeds."""
    rounds = []
    for summary in result.run.rounds:
        public_steps = []
        for public_step in summary.public_steps:
            share = 0.5 - (0.04 - 1e-4 * result.seed) * (public_step.public_step - 1)
            shares = dict.fromkeys(public_step.replaced_share, share)
            public_steps.append(public_step.model_copy(update={"replaced_share": shares}))
        rounds.append(summary.model_copy(update={"public_steps": public_steps}))
    run = result.run.model_copy(update={"rounds": rounds})
    return result.model_copy(update={"run": run})
