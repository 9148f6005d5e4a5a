"""A public step whose responses the coordinator refuses, or whose exchange is malformed."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import InvalidResponses, RoundClosed
from pubswap_protocol.messages import Receipt
from pubswap_protocol.methods.method import PubSwap
from pubswap_protocol.schedule import public_step_number
from support.client.one_client import ROUNDS, STEPS, World, kill_again_and_again

MODES = [PubSwap(), PubSwap(mode="pipelined")]


def refuse(one: World) -> None:
    """Refuse all responses, and say so again when the exchange is asked for."""
    submit = one.coordinator.submit_responses

    def refusing(*args: Any) -> Receipt:
        submit(*args)
        raise InvalidResponses("A response ends at its first end token.")

    def closed(*_: Any, **__: Any) -> bytes:
        raise RoundClosed("The exchange closed without responses of yours.")

    one.coordinator.submit_responses = refusing  # type: ignore[method-assign]
    one.coordinator.exchanged = closed  # type: ignore[method-assign]


def spoil(one: World) -> None:
    """Put an end token in front of every donated response."""
    exchanged = one.coordinator.exchanged
    one.coordinator.asked = 0  # type: ignore[attr-defined]

    def spoilt(*args: Any, **options: Any) -> bytes:
        one.coordinator.asked += 1  # type: ignore[attr-defined]
        tensors = load(exchanged(*args, **options))
        lengths, ends = tensors["lengths"].flatten(), one.coordinator.run.model.eos_token_ids
        for end, length in zip(np.cumsum(lengths), lengths, strict=True):
            if length > 1:
                tensors["tokens"][end - length] = ends[0]
        return save(tensors)

    one.coordinator.exchanged = spoilt  # type: ignore[method-assign]


def trained_on_its_own(one: World) -> bool:
    """Whether each public step's groups were those that the client had sent."""
    steps = [
        step
        for step in range(1, STEPS + 1)
        if public_step_number(one.coordinator.run.settings, step)
    ]
    own = {
        (round_, step): {digest_of(one.coordinator.submitted[round_, number])}
        for round_ in range(1, ROUNDS + 1)
        for number, step in enumerate(steps, start=1)
    }
    return {key: one.trained_on[key] for key in own} == own


@pytest.mark.parametrize("method", MODES, ids=["synchronous", "pipelined"])
@pytest.mark.parametrize("fault", [refuse, spoil])
def test_a_client_trains_on_its_own_responses_and_goes_on(
    world: Callable[..., World],
    caplog: pytest.LogCaptureFixture,
    fault: Callable[[World], None],
    method: PubSwap,
) -> None:
    """The log says why; a client that is killed again and again hands in the same adapters."""
    undisturbed, killed = world(method=method), world(method=method)
    fault(undisturbed)
    fault(killed)
    with caplog.at_level(logging.WARNING):
        undisturbed.live()
    assert "first end token" in caplog.text
    assert trained_on_its_own(undisturbed)
    kill_again_and_again(killed)
    assert killed.adapters() == undisturbed.adapters()


def test_a_malformed_exchange_is_asked_for_once_and_reported(world: Callable[..., World]) -> None:
    """The update says in how many public steps that happened."""
    one, well = world(), world()
    spoil(one)
    one.live()
    well.live()
    counts = [one.coordinator.updates[number].metrics.exchanges_refused for number in (1, 2)]
    assert sum(counts) == one.coordinator.asked == len(one.coordinator.submitted)  # type: ignore[attr-defined]
    assert [well.coordinator.updates[n].metrics.exchanges_refused for n in (1, 2)] == [0, 0]
