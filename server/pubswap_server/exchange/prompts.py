"""Public prompts chosen by what they have taught so far (swap.prompts = "informative").

A group whose rewards are all equal teaches nothing, so a prompt is worth the variance p (1 - p) of
its rewards, over all clients' own responses in earlier exchanges. p is not known: with r right
of n responses and a uniform prior, it is Beta(a, b), a = r + 1, b = n - r + 1, and

    w = E[p (1 - p)] = a b / ((a + b) (a + b + 1))

A step draws its prompts in proportion to w. One that was never asked has w = 1/6, two thirds of the
most there is; one that all get right or wrong keeps about 1 / n, so that nothing is forgotten for
good. What was seen earlier counts half with each time that a prompt is asked again: policies move.
"""

from collections import OrderedDict
from collections.abc import Sequence
from copy import deepcopy

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session

from pubswap_protocol.draws import rng_for
from pubswap_protocol.errors import RoundClosed
from pubswap_protocol.schedule import public_batch
from pubswap_protocol.settings import RunSettings
from pubswap_server.database.tables import PromptsRow, RoundRow, RunRow, SetRow
from pubswap_server.runs import runs
from pubswap_server.runs.state import ROUND_UNDER_WAY

FORGETTING = 0.5


class PromptCounts:
    """The verdicts on the prompts of a public set (size,), added up step by step."""

    def __init__(self, size: int) -> None:
        self._right, self._seen = np.zeros(size), np.zeros(size)

    def add(self, step: PromptsRow) -> None:
        """Add a step whose exchange is closed; of others nothing is known."""
        if step.right is not None:
            prompts = list(step.prompts)
            self._right[prompts] = FORGETTING * self._right[prompts] + step.right
            self._seen[prompts] = FORGETTING * self._seen[prompts] + step.responses

    def variances(self) -> NDArray[np.float64]:
        """E[p (1 - p)] of each prompt (size,)."""
        a, b = self._right + 1, self._seen - self._right + 1
        return np.asarray(a * b / ((a + b) * (a + b + 1)))


def informative_batch(
    settings: RunSettings,
    counts: PromptCounts,
    round_: int,
    swap: int,
    earlier: Sequence[PromptsRow],
) -> list[int]:
    """Indices (b,) into the public set for public step `swap` (1, 2, ...) of a round.

    `earlier` are the steps of this round before it, in their order, and `counts` holds all rounds
    before. No prompt comes twice in a round before all have come.
    """
    counts = deepcopy(counts)
    for step in earlier:
        counts.add(step)
    worth = counts.variances()
    size = len(worth)
    uses = np.zeros(size, dtype=np.int64)
    for step in earlier:
        uses[list(step.prompts)] += 1
    rng = rng_for(settings.seed, "informative", round_, swap)
    batch: list[int] = []
    while (lacking := settings.grpo.prompts_per_step - len(batch)) > 0:
        left = np.setdiff1d(np.arange(size), batch)
        fresh = left[uses[left] == uses[left].min()]
        chances = worth[fresh] / worth[fresh].sum()
        drawn = rng.choice(fresh, size=min(lacking, len(fresh)), replace=False, p=chances)
        batch += drawn.tolist()
    return batch


KEPT_RUNS = 64


def prompts_of(session: Session, run: RunRow, round_: int, swap: int) -> tuple[int, ...]:
    """The positions in the public set (b,); raises RoundClosed where nobody has chosen them."""
    settings = runs.settings_of(run)
    if settings.swap.prompts == "uniform":
        return tuple(public_batch(settings, _size(session, run), round_, swap))
    row = session.get(PromptsRow, (run.id, round_, swap))
    if row is None:
        raise RoundClosed(
            f"Nobody has chosen the prompts of public step {swap} of round {round_}: the first "
            "client that asks for them, while the round is under way, has them chosen."
        )
    return tuple(row.prompts)


def to_be_chosen(session: Session, run: RunRow, round_: int, swap: int) -> bool:
    """Whether a step's prompts are to be chosen now, by the answers so far.

    A client asks when all earlier exchanges of the round are closed; what is chosen then is kept,
    so that everyone gets the same, whatever closes later.
    """
    return (
        runs.settings_of(run).swap.prompts == "informative"
        and round_ == run.round
        and run.state in ROUND_UNDER_WAY
        and session.get(PromptsRow, (run.id, round_, swap)) is None
    )


class PastCounts:
    """The verdicts on each run's prompts in the rounds that are over, which never change."""

    def __init__(self) -> None:
        # By run: the last round in it, the adapter that round ended with, and what was shown.
        self._kept: OrderedDict[str, tuple[int, str | None, PromptCounts]] = OrderedDict()

    def before(self, session: Session, run: RunRow) -> PromptCounts:
        """The rounds before the one under way; only those that are over since are read."""
        last, adapter, kept = self._kept.get(run.id, (0, None, None))
        if kept is None or last >= run.round or _ended_with(session, run, last) != adapter:
            last, kept = 0, PromptCounts(_size(session, run))
        counts = deepcopy(kept)
        for step in _steps(session, run, last, run.round - 1):
            counts.add(step)
        self._kept[run.id] = run.round - 1, _ended_with(session, run, run.round - 1), counts
        self._kept.move_to_end(run.id)
        if len(self._kept) > KEPT_RUNS:
            self._kept.popitem(last=False)
        return counts


def _ended_with(session: Session, run: RunRow, round_: int) -> str | None:
    row = session.get(RoundRow, (run.id, round_))
    return None if row is None else row.adapter


def choose(session: Session, run: RunRow, round_: int, swap: int, past: PastCounts) -> None:
    """Choose a step's prompts, unless they are; `run` is locked."""
    if not to_be_chosen(session, run, round_, swap):
        return
    earlier = _steps(session, run, run.round - 1, run.round)
    counts = past.before(session, run)
    batch = informative_batch(runs.settings_of(run), counts, round_, swap, earlier)
    session.add(PromptsRow(run_id=run.id, round=round_, swap=swap, prompts=batch, responses=0))


def _steps(session: Session, run: RunRow, after: int, last: int) -> list[PromptsRow]:
    """The steps of the rounds after + 1, ..., last, in their order."""
    rows = session.scalars(
        select(PromptsRow)
        .where(PromptsRow.run_id == run.id, PromptsRow.round > after, PromptsRow.round <= last)
        .order_by(PromptsRow.round, PromptsRow.swap)
    )
    return list(rows)


def _size(session: Session, run: RunRow) -> int:
    return session.get_one(SetRow, (run.id, "public")).problems
