"""Which prompts a public step asks: a function of the seed, or chosen once and kept."""

from collections import OrderedDict

from sqlalchemy import select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import NotFound
from pubswap_protocol.schedule import public_batch
from pubswap_server import runs
from pubswap_server.prompts import Asked, Shown, informative_batch
from pubswap_server.state import ROUND_UNDER_WAY
from pubswap_server.tables import PromptsRow, RoundRow, RunRow, SetRow

KEPT_RUNS = 64


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


class Rounds:
    """What the prompts of each run have shown in the rounds that are over, which never changes."""

    def __init__(self) -> None:
        # By run: the last round in it, the adapter that round ended with, and what was shown.
        self._kept: OrderedDict[str, tuple[int, str | None, Shown]] = OrderedDict()

    def before(self, session: Session, run: RunRow) -> Shown:
        """What came before the round under way; only rounds that are over since are read."""
        last, adapter, kept = self._kept.get(run.id, (0, None, None))
        if kept is None or last >= run.round or _ended_with(session, run, last) != adapter:
            last, kept = 0, Shown(_size(session, run))
        shown = kept.copy()
        for asked in _asked(session, run, last, run.round - 1):
            shown.add(asked)
        self._kept[run.id] = run.round - 1, _ended_with(session, run, run.round - 1), shown
        self._kept.move_to_end(run.id)
        if len(self._kept) > KEPT_RUNS:
            self._kept.popitem(last=False)
        return shown


def _ended_with(session: Session, run: RunRow, round_: int) -> str | None:
    row = session.get(RoundRow, (run.id, round_))
    return None if row is None else row.adapter


def choose(session: Session, run: RunRow, round_: int, swap: int, over: Rounds) -> None:
    """Choose a step's prompts, unless they are; `run` is locked."""
    if not to_be_chosen(session, run, round_, swap):
        return
    earlier = _asked(session, run, run.round - 1, run.round)
    shown = over.before(session, run)
    batch = informative_batch(runs.settings_of(run), shown, round_, swap, earlier)
    session.add(PromptsRow(run_id=run.id, round=round_, swap=swap, prompts=batch, responses=0))


def _asked(session: Session, run: RunRow, after: int, last: int) -> list[Asked]:
    """The steps of the rounds after + 1, ..., last, in their order."""
    rows = session.scalars(
        select(PromptsRow)
        .where(PromptsRow.run_id == run.id, PromptsRow.round > after, PromptsRow.round <= last)
        .order_by(PromptsRow.round, PromptsRow.swap)
    )
    return [Asked(row.prompts, row.right, row.responses) for row in rows]


def learn(
    session: Session, run: RunRow, round_: int, swap: int, right: list[int], responses: int
) -> None:
    """Keep what a closed exchange has shown: how many of a prompt's responses were `right` (P,)."""
    row = session.get(PromptsRow, (run.id, round_, swap))
    if row is not None:
        row.right, row.responses = right, responses


def _size(session: Session, run: RunRow) -> int:
    return session.get_one(SetRow, (run.id, "public")).problems
