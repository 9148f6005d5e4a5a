"""Public prompts by informativeness: their worth, and the draws."""

from collections import Counter

import numpy as np
import pytest

from pubswap_protocol.settings import GrpoSettings, RunSettings
from pubswap_server.database.tables import PromptsRow
from pubswap_server.exchange.prompts import informative_batch, variances

RUN = RunSettings(grpo=GrpoSettings(prompts_per_step=4))


def asked_prompts(
    prompts: list[int], right: list[int] | None = None, responses: int = 0, round_: int = 1
) -> PromptsRow:
    """A public step; it has verdicts if its exchange is closed."""
    return PromptsRow(round=round_, prompts=prompts, right=right, responses=responses)


def test_worth_is_the_expected_variance_under_a_uniform_prior() -> None:
    """It equals the posterior's integral, computed numerically."""
    asked = asked_prompts([0, 1, 2], right=[0, 5, 16], responses=16)
    p = np.linspace(0, 1, 200001)
    for found, right in zip(variances(4, [asked]), (0, 5, 16, None), strict=True):
        density = np.ones_like(p) if right is None else p**right * (1 - p) ** (16 - right)
        exact = (density * p * (1 - p)).sum() / density.sum()
        assert found == pytest.approx(exact, rel=1e-4)


def test_the_order_of_worth() -> None:
    """Half right comes before never asked, then nearly always right, then always right."""
    asked = asked_prompts([0, 1, 2], right=[16, 30, 32], responses=32)
    worth = variances(4, [asked])
    assert worth[0] > worth[3] > worth[1] > worth[2] > 0


def test_what_was_seen_last_counts_most() -> None:
    """A prompt that has just been solved is worth less than one that has just become solvable."""
    turned = [
        asked_prompts([0, 1], right=[16, 32], responses=32),
        asked_prompts([0, 1], right=[32, 16], responses=32),
    ]
    worth = variances(2, turned)
    assert worth[0] < worth[1]


def test_an_exchange_that_is_not_closed_has_shown_nothing() -> None:
    """Its prompts are worth what they were."""
    assert np.array_equal(variances(3, [asked_prompts([0, 1])]), variances(3, []))


def test_no_prompt_comes_twice_in_a_round_before_all_have_come() -> None:
    """Whatever they are worth, and even if a batch crosses the end of the set."""
    earlier: list[PromptsRow] = []
    for swap in range(1, 6):
        batch = informative_batch(RUN, 10, 3, swap, earlier)
        assert len(set(batch)) == 4
        earlier.append(asked_prompts(batch, [swap] * 4, responses=8, round_=3))
    asked = [prompt for step in earlier for prompt in step.prompts]
    assert Counter(asked) == dict.fromkeys(range(10), 2)
    assert set(asked[:10]) == set(asked[10:]) == set(range(10))
    assert len(set(informative_batch(RUN, 10, 4, 1, earlier))) == 4


def test_a_batch_is_whole_if_one_prompt_of_it_must_come_again() -> None:
    """Of five prompts, the second step of four has the one that is left, and three others."""
    first = informative_batch(RUN, 5, 1, 1, [])
    (left,) = set(range(5)) - set(first)
    second = informative_batch(RUN, 5, 1, 2, [asked_prompts(first)])
    assert left in second and len(set(second)) == 4
    one = RunSettings(grpo=GrpoSettings(prompts_per_step=1))
    assert len(informative_batch(one, 5, 1, 1, [])) == 1


def test_informative_prompts_come_more_often_and_none_is_forgotten() -> None:
    """Of forty prompts, the eight with varying rewards get most draws; the others get some."""
    right = [16] * 8 + [0] * 16 + [32] * 16
    earlier = [asked_prompts(list(range(40)), right, responses=32)]
    counts: Counter[int] = Counter()
    for swap in range(1, 1001):
        counts.update(informative_batch(RUN, 40, 2, swap, earlier))
    varied = sum(counts[prompt] for prompt in range(8))
    assert varied > 0.55 * 4000
    assert set(counts) == set(range(40))


def test_a_batch_is_a_function_of_seed_round_step_and_what_was_seen() -> None:
    """The same values give the same batch; changing any of them gives another."""
    earlier = [asked_prompts([0, 1], right=[4, 0], responses=8)]
    first = informative_batch(RUN, 40, 2, 1, earlier)
    assert first == informative_batch(RUN, 40, 2, 1, earlier)
    others = [
        informative_batch(RUN.model_copy(update={"seed": 1}), 40, 2, 1, earlier),
        informative_batch(RUN, 40, 3, 1, earlier),
        informative_batch(RUN, 40, 2, 2, earlier),
    ]
    assert all(other != first for other in others)
