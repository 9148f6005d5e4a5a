"""The learning rate over a round's local steps."""

import math
from typing import Any

import pytest

from pubswap_client.training.learning_rate import learning_rate
from pubswap_protocol.settings import RunSettings


def rates(shape: str, steps: int, order: range | list[int], **settings: Any) -> list[float]:
    run = RunSettings.model_validate(
        {"grpo": {"learning_rate": 1.0, "learning_rate_shape": shape}, **settings}
    )
    return [learning_rate(run, step, steps) for step in order]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("constant", [1.0] * 20),
        ("warmup", [0.5] + [1.0] * 19),
        ("decay", [(20 - done) / 20 for done in range(20)]),
        ("warmup_decay", [0.5] + [(20 - done) / 20 for done in range(1, 20)]),
    ],
)
def test_each_shape_is_that_of_the_documentation(shape: str, expected: list[float]) -> None:
    """Of 20 steps, a tenth is two steps of warm-up; a decay would reach 0 one step after the
    last.
    """
    assert rates(shape, 20, range(1, 21), local_steps=20) == pytest.approx(expected, abs=1e-15)


def test_a_member_that_makes_fewer_steps_has_the_whole_shape_in_them() -> None:
    """The third of its three steps has a third of the rate, although others go on to the
    fortieth.
    """
    assert rates("decay", 3, range(1, 4)) == pytest.approx([1, 2 / 3, 1 / 3])


def test_a_pipelined_round_decays_in_the_order_of_its_updates() -> None:
    """Step 3 is updated before the public step 2, so it has the larger rate."""
    order = [1, 3, 2, 5, 4, 6]
    found = rates("decay", 6, order, local_steps=6, swap={"mode": "pipelined"})
    assert found == pytest.approx([1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


@pytest.mark.parametrize("shape", ["warmup", "decay", "warmup_decay"])
def test_a_round_of_one_step_has_the_whole_rate(shape: str) -> None:
    """Its step is both first and last; the second step of a trial has no less."""
    assert rates(shape, 1, [1, 2], local_steps=1, method="fedavg") == [1.0, 1.0]


def test_no_rate_is_zero() -> None:
    """However long the round, because a step with rate 0 would be sampled for nothing."""
    found = rates("warmup_decay", 1000, range(1, 1001, 111), local_steps=1000)
    assert all(rate > 0 and math.isfinite(rate) for rate in found)
