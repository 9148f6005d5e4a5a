"""Replayed responses in a client's rounds, and in a client that is killed."""

from collections.abc import Callable
from typing import Any

import pytest

from pubswap_client.state.journal import Journal, JournalOwner
from pubswap_protocol.settings import SwapSettings
from pubswap_protocol.tensors.responses import ResponseRules, decode_responses, encode_responses
from support.client.one_client import PUBLIC, World, kill_again_and_again

REPLAY = SwapSettings(replay=True)


@pytest.mark.parametrize(
    "swap",
    [
        REPLAY,
        pytest.param(SwapSettings(replay=True, mode="pipelined"), marks=pytest.mark.full),
    ],
    ids=["synchronous", "pipelined"],
)
def test_a_client_that_dies_again_and_again_replays_the_same(
    world: Callable[..., World], swap: SwapSettings
) -> None:
    """Groups, buffer and adapters equal an undisturbed client's, and differ from those without
    replay.
    """
    without = world(swap=swap.model_copy(update={"replay": False}))
    undisturbed, killed = world(swap=swap), world(swap=swap)
    for one in (without, undisturbed, killed):
        no_peer_is_right_again(one)
    for one in (without, undisturbed):
        one.live()
    assert kill_again_and_again(killed) > 5
    assert killed.adapters() == undisturbed.adapters() != without.adapters()
    assert killed.trained_on == undisturbed.trained_on
    assert killed.coordinator.submitted == undisturbed.coordinator.submitted
    assert kept_by(killed) == kept_by(undisturbed)
    assert set(kept_by(killed)) == set(PUBLIC)
    assert not kept_by(without)


def no_peer_is_right_again(one: World) -> None:
    """After the first exchange, give the client copies of its own first response to each prompt, so
    that all of a group are right or none.
    """
    exchanged, run = one.coordinator.exchanged, one.coordinator.run
    rules = ResponseRules.of(run.model, run.settings, PUBLIC)

    def given(run: str, round_: int, swap: int, *more: Any, **options: Any) -> bytes:
        body = exchanged(run, round_, swap, *more, **options)
        if (round_, swap) == (1, 1):
            return body
        own = decode_responses(one.coordinator.submitted[round_, swap], rules)
        return encode_responses(PUBLIC, [group[:1] * len(group) for group in own])

    one.coordinator.exchanged = given  # type: ignore[method-assign]


def kept_by(one: World) -> dict[int, list[Any]]:
    """The buffer on disk."""
    kept = Journal(one.state, JournalOwner.of(one.coordinator.run, "a")).replay()
    return {
        prompt: [(response.tokens.tolist(), response.logprobs.tolist()) for response in responses]
        for prompt, responses in kept.items()
    }
