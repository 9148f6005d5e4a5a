"""An exchange in one call."""

from collections.abc import Mapping, Sequence
from typing import Any

from pubswap_protocol.methods.strategies import STRATEGIES, Choice, Pool


def exchange(
    strategy: Any,
    correct: Mapping[str, Any],
    receiver: str,
    seed: int,
    round_: int,
    public_step: int,
    prompts: Sequence[int],
    donatable: Mapping[str, Any] | None = None,
) -> list[list[Choice]]:
    """The responses chosen for the receiver's groups."""
    pool = Pool(seed, round_, public_step, prompts, correct, donatable or {})
    return STRATEGIES.read(strategy).choices(pool, receiver)
