"""The schedule of public steps and the prompts of each step: pure functions of the run's seed."""

from pubswap_protocol.draws import rng_for
from pubswap_protocol.settings import RunSettings


def public_step_number(settings: RunSettings, step: int) -> int | None:
    """The number (1, 2, ...) of a local step (1..tau) among its round's public steps, or None.

    Step s is public if s mod period = 0 (paper, section 3.4). The baselines have none.
    """
    if settings.exchange is None or step % settings.exchange.period:
        return None
    return step // settings.exchange.period


def public_steps_per_round(settings: RunSettings) -> int:
    """The number of public steps among a round's tau steps."""
    return settings.local_steps // settings.exchange.period if settings.exchange else 0


def public_updates(settings: RunSettings) -> list[int]:
    """The places (1..tau) of a round's public steps in the order of its updates."""
    if settings.exchange is None:
        return []
    period, steps = settings.exchange.period, settings.local_steps
    places = range(period, steps + 1, period)
    return [step + staleness(settings, step) for step in places]


def private_steps_per_round(settings: RunSettings) -> int:
    """The number of private steps among a round's tau steps."""
    return settings.local_steps - public_steps_per_round(settings)


def shuffled_indices(size: int, first: int, count: int, *key: int | str) -> list[int]:
    """Indices (count,) of problems first, first + 1, ... of an endless walk over a set of `size`.

    Draws without replacement within an epoch: each epoch walks the set in a new random order, drawn
    from (key, epoch). The indices may cross into the next epoch.
    """
    indices: list[int] = []
    while len(indices) < count:
        epoch, offset = divmod(first + len(indices), size)
        order = rng_for(*key, "epoch", epoch).permutation(size)
        indices += order[offset : offset + count - len(indices)].tolist()
    return indices


def update_order(settings: RunSettings) -> list[int]:
    """The local steps 1..tau in the order of their updates.

    In a pipelined run a public step's update comes after the update of the private step that
    follows; nothing follows the last step of a round. Steps keep their numbers, and so their draws.
    """
    order: list[int] = []
    for step in range(1, settings.local_steps + 1):
        order.insert(len(order) - (overtaken(settings, step) is not None), step)
    return order


def overtaken(settings: RunSettings, step: int) -> int | None:
    """The public step that a private step overtakes, or None.

    The public step is sampled before the private one, but its update comes after.
    """
    pipelined = settings.exchange is not None and settings.exchange.mode == "pipelined"
    if not pipelined or step == 1 or public_step_number(settings, step) is not None:
        return None
    return step - 1 if public_step_number(settings, step - 1) is not None else None


def staleness(settings: RunSettings, step: int) -> int:
    """The number of other updates between a step's sampling and its own update."""
    later = step + 1
    return int(later <= settings.local_steps and overtaken(settings, later) == step)


def private_position(settings: RunSettings, round_: int, step: int) -> int:
    """A client's position in the walk over its private set before a private step of a round.

    Does not count what resampling has taken beyond b per step.
    """
    done_in_round = sum(public_step_number(settings, s) is None for s in range(1, step))
    steps = (round_ - 1) * private_steps_per_round(settings) + done_in_round
    return steps * settings.grpo.prompts_per_step


def private_prompts(
    settings: RunSettings, client: str, size: int, first: int, count: int
) -> list[int]:
    """Indices (count,) into a client's private set, from position `first` of its walk."""
    return shuffled_indices(size, first, count, settings.seed, "private", client)


def public_batch(settings: RunSettings, size: int, round_: int, public_step: int) -> list[int]:
    """Indices (b,) into the public set for public step `public_step` (1, 2, ...) of a round."""
    first = ((round_ - 1) * public_steps_per_round(settings) + public_step - 1) * (
        settings.grpo.prompts_per_step
    )
    return shuffled_indices(size, first, settings.grpo.prompts_per_step, settings.seed, "public")
