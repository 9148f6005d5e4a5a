"""Members that share one policy without noticing."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from pubswap_protocol.tensors.adapter import Adapter
from pubswap_simulation.shared_policy import SharedPolicy, Stopped, trainer_in_turns

if TYPE_CHECKING:
    from pubswap_client.policy.policy import Policy


def test_each_member_finds_its_own_factors(
    policy: "Policy", random_adapter: Callable[..., Adapter]
) -> None:
    """Whatever the others loaded or trained in between."""
    shared = SharedPolicy(policy)
    turns = [shared.member() for _ in range(3)]
    wanted = [random_adapter(policy.card.layout, seed) for seed in range(3)]
    for turn, adapter in zip(turns, wanted, strict=True):
        with turn:
            policy.load_adapter(adapter)
    with turns[1], torch.no_grad():
        for factor in policy.factors():
            factor.add_(1)  # in place, like an optimizer
    for number in (2, 0, 1, 1, 0):
        with turns[number]:
            for name, array in policy.adapter().items():
                moved = 1 if number == 1 else 0
                assert np.array_equal(array, wanted[number][name] + np.float32(moved))


def test_an_optimizer_goes_on_where_it_was(policy: "Policy") -> None:
    """Two members' AdamW make the same steps as each would alone."""

    def step(optimizer: torch.optim.Optimizer) -> None:
        for place, factor in enumerate(policy.trainable()):
            factor.grad = torch.full_like(factor, 1.0 + place)
        optimizer.step()

    def trained(others: bool) -> Adapter:
        shared = SharedPolicy(policy)
        first, second = shared.member(), shared.member()
        mine, theirs = (torch.optim.AdamW(policy.trainable(), lr=0.1) for _ in range(2))
        for _ in range(3):
            with first:
                step(mine)
            if others:
                with second:
                    step(theirs)
        with first:
            return policy.adapter()

    start = policy.adapter()
    undisturbed = trained(others=False)
    policy.load_adapter(start)
    for name, array in trained(others=True).items():
        assert np.array_equal(array, undisturbed[name])


def test_trainers_of_a_shared_policy_take_turns(policy: "Policy") -> None:
    """Each call of a trainer's method is one turn; its attributes remain accessible."""

    class Trainer:
        round = 3
        inside = 0

        def work(self) -> int:
            self.inside += 1
            seen = self.inside
            policy.adapter()
            self.inside -= 1
            return seen

    shared = SharedPolicy(policy)
    trainer: Any = Trainer()
    members: list[Any] = [trainer_in_turns(trainer, shared.member()) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda n: members[n % 4].work(), range(200)))
    assert set(found) == {1}
    assert members[0].round == 3


def test_no_turn_begins_after_the_end(policy: "Policy") -> None:
    """A member that waits for its turn stops."""
    shared = SharedPolicy(policy)
    turn = shared.member()
    shared.stop()
    with pytest.raises(Stopped), turn:
        pass
