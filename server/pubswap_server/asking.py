"""Which prompts a public step asks: a function of the seed, or chosen once and kept."""

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import NotFound
from pubswap_protocol.schedule import public_batch
from pubswap_server import runs
from pubswap_server.prompts import Asked, informative_batch
from pubswap_server.state import ROUND_UNDER_WAY
from pubswap_server.tables import PromptsRow, RunRow, SetRow


def prompts_of(session: Session, run: RunRow, round_: int, swap: int) -> tuple[int, ...]:
    """The positions in the public set (b,); raises NotFound for prompts that are to be chosen."""
    settings = runs.settings_of(run)
    if settings.swap.prompts == "uniform":
        return tuple(public_batch(settings, _size(session, run), round_, swap))
    row = session.get(PromptsRow, (run.id, round_, swap))
    if row is None:
        raise NotFound(
            f"Nobody has chosen the prompts of public step {swap} of round {round_}: the first "
            "client that asks for them, while the round is under way, has them chosen."
        )
    return tuple(row.prompts)


def to_be_chosen(session: Session, run: RunRow, round_: int, swap: int) -> bool:
    """Whether a step's prompts follow from what the clients have answered so far, and are open.

    A client asks when all earlier exchanges of the round are closed; what is chosen then is kept,
    so that everyone gets the same, whatever closes later.
    """
    return (
        runs.settings_of(run).swap.prompts == "informative"
        and round_ == run.round
        and run.state in ROUND_UNDER_WAY
        and session.get(PromptsRow, (run.id, round_, swap)) is None
    )


def choose(session: Session, run: RunRow, round_: int, swap: int) -> None:
    """Choose a step's prompts, unless they are; `run` is locked."""
    if not to_be_chosen(session, run, round_, swap):
        return
    rows = session.scalars(
        select(PromptsRow)
        .where(PromptsRow.run_id == run.id)
        .order_by(PromptsRow.round, PromptsRow.swap)
    )
    earlier = [Asked(row.round, row.prompts, row.right, row.responses) for row in rows]
    batch = informative_batch(runs.settings_of(run), _size(session, run), round_, swap, earlier)
    session.add(PromptsRow(run_id=run.id, round=round_, swap=swap, prompts=batch, responses=0))


def learn(
    session: Session, run: RunRow, round_: int, swap: int, verdicts: list[list[list[bool]]]
) -> None:
    """Keep what a closed exchange has shown of its prompts: all clients' `verdicts` (N, P, K)."""
    row = session.get(PromptsRow, (run.id, round_, swap))
    if row is not None:
        table = np.array(verdicts, dtype=bool)
        row.right = table.sum(axis=(0, 2)).tolist()
        row.responses = table.shape[0] * table.shape[2]


def _size(session: Session, run: RunRow) -> int:
    return session.get_one(SetRow, (run.id, "public")).problems
