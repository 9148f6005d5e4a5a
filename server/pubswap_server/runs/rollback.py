"""A run goes back to an earlier round's adapter, and on from there."""

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import NotFound
from pubswap_server.database.tables import (
    PromptsRow,
    RoundRow,
    RunRow,
    SubmissionRow,
    SwapRow,
    UpdateRow,
)
from pubswap_server.runs import retention, runs
from pubswap_server.runs.events import record
from pubswap_server.runs.state import rolled_back


def roll_back(session: Session, run: RunRow, to: int) -> None:
    """Begin round `to` + 1 again from round `to`'s adapter, optimizer state and residuals.

    What came since is gone but for the log, which keeps the rounds' adapters and evaluations.
    Raises WrongState for a round that is not before the one under way, NotFound if its adapter is
    not there.
    """
    status = rolled_back(runs.status_of(run), to)
    start = session.get(RoundRow, (run.id, to))
    if start is None or start.adapter is None:
        raise NotFound(f"Round {to} has no adapter to go back to.")
    later = select(RoundRow).where(RoundRow.run_id == run.id, RoundRow.round > to)
    rounds = [
        {"round": row.round, "adapter": row.adapter, "evaluation": row.evaluation}
        for row in session.scalars(later.order_by(RoundRow.round))
        if row.adapter is not None
    ]
    record(session, run.id, "rolled back", to=to, adapter=start.adapter, rounds=rounds)
    for table in (UpdateRow, SubmissionRow, SwapRow, PromptsRow, RoundRow):
        session.execute(delete(table).where(table.run_id == run.id, table.round > to))
    run.state, run.round, run.failure = status.state, status.round, None
    run.rollbacks += 1
    session.add(RoundRow(run_id=run.id, round=run.round))
    session.flush()
    retention.free_unused(session, run.id, ended=False)
