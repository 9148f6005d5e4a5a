"""Public prompts chosen by their value in earlier exchanges (swap.prompts = "informative").

A group whose rewards are all equal teaches nothing, so a prompt is worth the variance p (1 - p) of
its rewards, over all clients' own responses in earlier exchanges. p is not known: with r right
of n responses and a uniform prior, it is Beta(a, b), a = r + 1, b = n - r + 1, and

    w = E[p (1 - p)] = a b / ((a + b) (a + b + 1))

A step draws its prompts in proportion to w. A prompt that was never asked has w = 1/6, two thirds
of the maximum. One that all get right or wrong keeps about 1 / n, so that none is dropped for good.
Each time that a prompt is asked again, earlier counts are halved, because policies change.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session

from pubswap_protocol.draws import rng_for
from pubswap_protocol.errors import RoundClosed
from pubswap_protocol.schedule import public_batch
from pubswap_protocol.settings import RunSettings
from pubswap_server.database.tables import PromptsRow, RunRow, SetRow
from pubswap_server.runs.state import ROUND_UNDER_WAY

FORGETTING = 0.5


def variances(size: int, asked: Sequence[PromptsRow]) -> NDArray[np.float64]:
    """E[p (1 - p)] of each prompt of a public set (size,), after these steps, in order."""
    right, seen = np.zeros(size), np.zeros(size)
    for step in asked:
        if step.right is not None:  # known only once the exchange is closed
            prompts = list(step.prompts)
            right[prompts] = FORGETTING * right[prompts] + step.right
            seen[prompts] = FORGETTING * seen[prompts] + step.responses
    a, b = right + 1, seen - right + 1
    return np.asarray(a * b / ((a + b) * (a + b + 1)))


def informative_batch(
    settings: RunSettings, size: int, round_: int, swap: int, asked: Sequence[PromptsRow]
) -> list[int]:
    """Indices (b,) into the public set (size,) for public step `swap` (1, 2, ...) of a round.

    `asked` are all earlier steps, in order. No prompt comes twice in a round before all have come.
    """
    worth = variances(size, asked)
    uses = np.zeros(size, dtype=np.int64)
    for step in asked:
        if step.round == round_:
            uses[list(step.prompts)] += 1
    rng = rng_for(settings.seed, "informative", round_, swap)
    batch: list[int] = []
    while (lacking := settings.grpo.prompts_per_step - len(batch)) > 0:
        remaining = np.setdiff1d(np.arange(size), batch)
        fresh = remaining[uses[remaining] == uses[remaining].min()]
        chances = worth[fresh] / worth[fresh].sum()
        drawn = rng.choice(fresh, size=min(lacking, len(fresh)), replace=False, p=chances)
        batch += drawn.tolist()
    return batch


def prompts_of(session: Session, run: RunRow, round_: int, swap: int) -> tuple[int, ...]:
    """The positions in the public set (b,); raises RoundClosed if they were not chosen."""
    settings = run.settings
    if settings.swap.prompts == "uniform":
        return tuple(public_batch(settings, _size(session, run), round_, swap))
    row = session.get(PromptsRow, (run.id, round_, swap))
    if row is None:
        raise RoundClosed(
            f"No prompts have been chosen for public step {swap} of round {round_}: that happens "
            "when the first client asks for them while the round is under way."
        )
    return tuple(row.prompts)


def to_be_chosen(session: Session, run: RunRow, round_: int, swap: int) -> bool:
    """Whether a step's prompts are to be chosen now, from the answers so far.

    A client asks when all earlier exchanges of the round are closed. The choice is stored, so that
    all clients get the same prompts, whatever closes later.
    """
    return (
        run.settings.swap.prompts == "informative"
        and round_ == run.round
        and run.state in ROUND_UNDER_WAY
        and session.get(PromptsRow, (run.id, round_, swap)) is None
    )


def choose(session: Session, run: RunRow, round_: int, swap: int) -> None:
    """Choose a step's prompts, unless that was done; `run` is locked."""
    if not to_be_chosen(session, run, round_, swap):
        return
    asked = select(PromptsRow).where(PromptsRow.run_id == run.id)
    steps = session.scalars(asked.order_by(PromptsRow.round, PromptsRow.swap)).all()
    batch = informative_batch(run.settings, _size(session, run), round_, swap, steps)
    session.add(PromptsRow(run_id=run.id, round=round_, swap=swap, prompts=batch, responses=0))


def _size(session: Session, run: RunRow) -> int:
    return session.get_one(SetRow, (run.id, "public")).problems
