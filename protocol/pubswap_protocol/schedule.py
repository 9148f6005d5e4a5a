"""Which steps are public, and which prompts a step takes: pure functions of the run's seed."""

from pubswap_protocol.draws import rng_for
from pubswap_protocol.settings import RunSettings


def public_step(settings: RunSettings, step: int) -> int | None:
    """Which public step (1, 2, ...) of its round the local step (1..tau) is; None if private.

    Step s is public when s mod period = 0 (paper, section 3.4). As many as these are the first
    steps of a round with swap.schedule 'early', the last ones with 'late'. The baselines have none.
    """
    if settings.method != "pubswap":
        return None
    if settings.swap.schedule == "even":
        return None if step % settings.swap.period else step // settings.swap.period
    count = public_steps_per_round(settings)
    number = step if settings.swap.schedule == "early" else step - settings.local_steps + count
    return number if 1 <= number <= count else None


def public_steps_per_round(settings: RunSettings) -> int:
    """How many of a round's tau steps are public."""
    if settings.method != "pubswap":
        return 0
    return settings.local_steps // settings.swap.period


def private_steps_per_round(settings: RunSettings) -> int:
    """How many of a round's tau steps are private."""
    return settings.local_steps - public_steps_per_round(settings)


def walk(size: int, first: int, count: int, *key: int | str) -> list[int]:
    """Indices (count,) of problems first, first + 1, ... of an endless walk over a set of `size`.

    Without replacement within an epoch: the set is walked in a random order, drawn anew for each
    epoch from (key, epoch). What is taken may cross into the next epoch.
    """
    indices: list[int] = []
    while len(indices) < count:
        epoch, offset = divmod(first + len(indices), size)
        order = rng_for(*key, "epoch", epoch).permutation(size)
        indices += order[offset : offset + count - len(indices)].tolist()
    return indices


def update_order(settings: RunSettings) -> list[int]:
    """The local steps 1..tau in the order of their updates.

    In a pipelined run a public step's update comes after that of the private step behind it;
    the last step of a round has none behind it. Steps keep their numbers, and so their draws.
    """
    order: list[int] = []
    for step in range(1, settings.local_steps + 1):
        order.insert(len(order) - (overtaken(settings, step) is not None), step)
    return order


def overtaken(settings: RunSettings, step: int) -> int | None:
    """The public step that a private one overtakes: sampled before it, updated on after it."""
    pipelined = settings.swap.mode == "pipelined"
    if not pipelined or step == 1 or public_step(settings, step) is not None:
        return None
    return step - 1 if public_step(settings, step - 1) is not None else None


def staleness(settings: RunSettings, step: int) -> int:
    """How many updates lie between a step's sampling and its own."""
    later = step + 1
    return int(later <= settings.local_steps and overtaken(settings, later) == step)


def sampled_ahead(settings: RunSettings, step: int) -> int | None:
    """The private step that is sampled before the update of `step`, the one before it (overlap).

    Public steps are never sampled ahead, nor is anything across the end of a round.
    """
    if not settings.grpo.overlap:
        return None
    order = update_order(settings)
    later = order[order.index(step) + 1 :]
    return later[0] if later and public_step(settings, later[0]) is None else None


def private_place(settings: RunSettings, round_: int, step: int) -> int:
    """How many problems of its private set's walk a client has before a private step of a round.

    What resampling has taken beyond b a step comes on top.
    """
    done_in_round = sum(public_step(settings, s) is None for s in range(1, step))
    steps = (round_ - 1) * private_steps_per_round(settings) + done_in_round
    return steps * settings.grpo.prompts_per_step


def private_prompts(
    settings: RunSettings, client: str, size: int, first: int, count: int
) -> list[int]:
    """Indices (count,) into a client's private set, from place `first` of its walk."""
    return walk(size, first, count, settings.seed, "private", client)


def public_batch(settings: RunSettings, size: int, round_: int, swap: int) -> list[int]:
    """Indices (b,) into the public set for public step `swap` (1, 2, ...) of a round."""
    first = ((round_ - 1) * public_steps_per_round(settings) + swap - 1) * (
        settings.grpo.prompts_per_step
    )
    return walk(size, first, settings.grpo.prompts_per_step, settings.seed, "public")
