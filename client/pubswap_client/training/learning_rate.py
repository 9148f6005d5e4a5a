"""The learning rate's shape over the local steps of a round (docs/learning.md)."""

import math

from pubswap_protocol.schedule import update_order
from pubswap_protocol.settings import RunSettings

WARMUP_SHARE = 0.1  # of a round's steps


def learning_rate(settings: RunSettings, step: int, steps: int) -> float:
    """The rate of a local step in a round of `steps` steps, of which fewer than tau may be made.

    By its place in the order of the updates, so that nothing of it is to be kept over a restart.
    """
    shape, rate = settings.grpo.learning_rate_shape, settings.grpo.learning_rate
    if shape == "constant" or steps == 1:
        return rate
    place = update_order(settings).index(step) + 1
    if shape in ("warmup", "warmup_decay"):
        rate *= min(1, place / math.ceil(WARMUP_SHARE * steps))
    if shape in ("decay", "warmup_decay"):
        rate *= 1 - (place - 1) / steps
    return rate
