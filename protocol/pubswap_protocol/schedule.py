"""Which steps are public, and which prompts a step takes: pure functions of the run's seed."""

from pubswap_protocol.draws import rng_for
from pubswap_protocol.settings import RunSettings


def public_step(settings: RunSettings, step: int) -> int | None:
    """Which public step (1, 2, ...) of its round the local step (1..tau) is; None if private.

    Step s is public when s mod period = 0 (paper, section 3.4); the baselines have none.
    """
    if settings.method != "pubswap" or step % settings.swap.period:
        return None
    return step // settings.swap.period


def public_steps_per_round(settings: RunSettings) -> int:
    """How many of a round's tau steps are public."""
    if settings.method != "pubswap":
        return 0
    return settings.local_steps // settings.swap.period


def private_steps_per_round(settings: RunSettings) -> int:
    """How many of a round's tau steps are private."""
    return settings.local_steps - public_steps_per_round(settings)


def take(size: int, count: int, position: int, *key: int | str) -> list[int]:
    """Indices (count,) of the position-th batch (0, 1, ...) of a set of `size` problems.

    Without replacement within an epoch: the set is walked in a random order, drawn anew for each
    epoch from (key, epoch). A batch may cross into the next epoch.
    """
    first = position * count
    indices: list[int] = []
    while len(indices) < count:
        epoch, offset = divmod(first + len(indices), size)
        order = rng_for(*key, "epoch", epoch).permutation(size)
        indices += order[offset : offset + count - len(indices)].tolist()
    return indices


def private_batch(
    settings: RunSettings, client: str, size: int, round_: int, step: int
) -> list[int]:
    """Indices (b,) into a client's private set for a private local step of a round."""
    done_in_round = sum(public_step(settings, s) is None for s in range(1, step))
    position = (round_ - 1) * private_steps_per_round(settings) + done_in_round
    return take(size, settings.grpo.prompts_per_step, position, settings.seed, "private", client)


def public_batch(settings: RunSettings, size: int, round_: int, swap: int) -> list[int]:
    """Indices (b,) into the public set for public step `swap` (1, 2, ...) of a round."""
    position = (round_ - 1) * public_steps_per_round(settings) + swap - 1
    return take(size, settings.grpo.prompts_per_step, position, settings.seed, "public")
