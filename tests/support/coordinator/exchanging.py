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
    max_donor_share: float = 1.0,
) -> list[list[Choice]]:
    """The responses chosen for the receiver's groups."""
    exchanged = Exchange(
        strategy, seed, round_, swap, prompts, correct, donatable or {}, max_donor_share
    )
    return exchanged.choices(receiver)
