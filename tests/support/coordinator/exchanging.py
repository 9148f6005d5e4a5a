"""An exchange in one call."""

from collections.abc import Mapping, Sequence
from typing import Any

from pubswap_server.exchange.donation import Choice, Exchange


def exchange(
    strategy: Any,
    correct: Mapping[str, Any],
    receiver: str,
    seed: int,
    round_: int,
    swap: int,
    prompts: Sequence[int],
    donatable: Mapping[str, Any] | None = None,
) -> list[list[Choice]]:
    """The responses chosen for the receiver's groups."""
    exchanged = Exchange(strategy, seed, round_, swap, prompts, correct, donatable or {})
    return exchanged.choices(receiver)
