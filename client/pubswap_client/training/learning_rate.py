"""The learning rate schedule over the local steps of a round (docs/learning.md)."""

import math

from pubswap_protocol.schedule import update_order
from pubswap_protocol.settings import RunSettings

WARMUP_SHARE = 0.1  # of a round's steps


def learning_rate(settings: RunSettings, step: int, steps: int) -> float:
    """The learning rate of a local step in a round of `steps` steps, which may be fewer than tau.

    It depends only on the step's position in the order of updates, so a restart needs no saved
    state.
    """
    shape, rate = settings.grpo.learning_rate_shape, settings.grpo.learning_rate
    if shape == "constant" or steps == 1:
        return rate
    position = update_order(settings).index(step) + 1
    if shape in ("warmup", "warmup_decay"):
        rate *= min(1, position / math.ceil(WARMUP_SHARE * steps))
    if shape in ("decay", "warmup_decay"):
        rate *= 1 - (position - 1) / steps
    return rate
