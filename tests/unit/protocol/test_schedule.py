"""The schedule: public steps, and the prompts of each step."""

from collections import Counter
from typing import Any

import pytest

from pubswap_protocol.draws import rng_for, seed_for
from pubswap_protocol.methods.method import PubSwap
from pubswap_protocol.schedule import (
    overtaken,
    private_position,
    private_prompts,
    private_steps_per_round,
    public_batch,
    public_step_number,
    public_steps_per_round,
    shuffled_indices,
    staleness,
    update_order,
)
from pubswap_protocol.settings import GrpoSettings, RunSettings


def settings(period: int = 2, **fields: Any) -> RunSettings:
    """Settings with this public_step period and a tau of 10."""
    return RunSettings(**{"local_steps": 10, "method": PubSwap(period=period), **fields})


@pytest.mark.parametrize(
    ("period", "public"),
    [(1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), (2, [2, 4, 6, 8, 10]), (4, [4, 8]), (8, [8])],
)
def test_the_last_step_of_each_period_is_public(period: int, public: list[int]) -> None:
    """Step s of 1..tau is public if s mod period = 0; public steps are numbered from 1."""
    run = settings(period)
    found = {s: public_step_number(run, s) for s in range(1, 11)}
    assert [s for s, k in found.items() if k is not None] == public
    assert [k for k in found.values() if k is not None] == list(range(1, len(public) + 1))
    assert public_steps_per_round(run) == len(public)
    assert private_steps_per_round(run) == 10 - len(public)


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_the_baselines_have_no_public_step(method: str) -> None:
    """Every step is private."""
    run = settings(method=method)
    assert all(public_step_number(run, s) is None for s in range(1, 11))
    assert (public_steps_per_round(run), private_steps_per_round(run)) == (0, 10)


@pytest.mark.parametrize(("size", "count"), [(10, 3), (7, 7), (5, 8), (64, 8), (1, 1)])
def test_an_epoch_takes_each_problem_once(size: int, count: int) -> None:
    """Consecutive batches walk the set without replacement, epoch after epoch."""
    walked = [
        i for place in range(3 * size) for i in shuffled_indices(size, place * count, count, "key")
    ]
    epochs = [walked[start : start + size] for start in range(0, len(walked), size)]
    assert all(Counter(epoch) == Counter(range(size)) for epoch in epochs)
    if size >= 10:
        assert epochs[0] != epochs[1]


def test_private_batches_go_on_from_round_to_round() -> None:
    """Over two rounds, no private problem repeats before all have been used."""
    run = settings(grpo=GrpoSettings(prompts_per_step=4))
    steps = [s for s in range(1, 11) if public_step_number(run, s) is None]
    places = [private_position(run, r, s) for r in (1, 2) for s in steps]
    assert places == list(range(0, 40, 4))
    seen = [i for place in places for i in private_prompts(run, "a", 40, place, 4)]
    assert sorted(seen) == list(range(40))
    assert private_prompts(run, "a", 40, 0, 4) != private_prompts(run, "b", 40, 0, 4)


def test_public_batches_are_the_same_for_everyone_and_go_on_too() -> None:
    """They depend only on seed, round and public step."""
    run = settings(grpo=GrpoSettings(prompts_per_step=4))
    seen = [i for r in (1, 2) for k in range(1, 6) for i in public_batch(run, 40, r, k)]
    assert sorted(seen) == list(range(40))
    other = settings(grpo=GrpoSettings(prompts_per_step=4), seed=1)
    assert public_batch(run, 40, 1, 1) != public_batch(other, 40, 1, 1)


@pytest.mark.parametrize(
    ("period", "steps", "order"),
    [
        (2, 6, [1, 3, 2, 5, 4, 6]),
        (2, 5, [1, 3, 2, 5, 4]),
        (3, 8, [1, 2, 4, 3, 5, 7, 6, 8]),
        (4, 5, [1, 2, 3, 5, 4]),
    ],
)
def test_a_pipelined_public_step_is_overtaken_once(
    period: int, steps: int, order: list[int]
) -> None:
    """By the next private step; the last step of a round has none, and waits."""
    run = settings(local_steps=steps, method=PubSwap(period=period, mode="pipelined"))
    assert update_order(run) == order
    for step in range(1, steps + 1):
        before = overtaken(run, step)
        assert (before is not None) == (step in order and order.index(step) < step - 1)
        assert staleness(run, step) == max(0, order.index(step) + 1 - step)
    private = [step for step in order if public_step_number(run, step) is None]
    assert private == sorted(private)


@pytest.mark.parametrize("run", [settings(), settings(method="fedavg")], ids=["sync", "fedavg"])
def test_steps_keep_their_order_otherwise(run: RunSettings) -> None:
    """No step is overtaken or stale."""
    assert update_order(run) == list(range(1, 11))
    assert {overtaken(run, step) for step in range(1, 11)} == {None}
    assert {staleness(run, step) for step in range(1, 11)} == {0}


def test_draws_are_functions_of_their_key() -> None:
    """The same key gives the same numbers, and different keys never collide by concatenation."""
    assert seed_for("a", "bc") != seed_for("ab", "c")
    assert seed_for(1, 2) != seed_for("1", "2") != seed_for(12)
    assert rng_for("x").integers(1 << 30) == rng_for("x").integers(1 << 30)
