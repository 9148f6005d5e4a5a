"""A finished round, computed once more from what the members sent."""

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from pubswap_protocol.adapter import (
    AdapterLayout,
    encode_adapter,
    initial_adapter,
)
from pubswap_protocol.digests import algorithm_of, digest_of
from pubswap_protocol.errors import Gone
from pubswap_server import conductor, runs
from pubswap_server.admin.place import Place
from pubswap_server.storage.unkept import Unkept
from pubswap_server.tables import RoundRow, RunRow


@dataclass(frozen=True)
class Finished:
    """A round that ended with an adapter, and what that was made of."""

    name: str
    adapter: str
    layout: AdapterLayout
    seed: int
    inputs: conductor.Aggregation | None  # None for round 0, which is made of the seed alone
    freed: bool  # what it was made of is not kept any more


def finished_rounds(session: Session) -> list[Finished]:
    """All of them, of all runs."""
    rows = session.execute(
        select(RunRow, RoundRow)
        .join(RoundRow, RoundRow.run_id == RunRow.id)
        .where(RoundRow.adapter.is_not(None))
        .order_by(RunRow.created_at, RunRow.id, RoundRow.round)
    )
    return [_finished(session, run, row) for run, row in rows]


def _finished(session: Session, run: RunRow, row: RoundRow) -> Finished:
    inputs, freed = None, False
    try:
        inputs = conductor.inputs_of(session, run, row.round) if row.round else None
    except Gone:
        freed = True
    return Finished(
        name=f"round {row.round} of run {run.id}",
        adapter=row.adapter or "",
        layout=runs.model_of(run).layout,
        seed=runs.settings_of(run).seed,
        inputs=inputs,
        freed=freed,
    )


def recounted(place: Place, finished: Finished) -> str:
    """The digest that the round's adapter must have; the blobs must all be there."""
    if finished.inputs is None:
        initial = initial_adapter(finished.layout, finished.seed)
        return digest_of(encode_adapter(finished.layout, initial), algorithm_of(finished.adapter))
    with Unkept(place.blobs, place.storage.incoming) as scratch:
        made = conductor.made_of(scratch, finished.inputs)
    place.forget_fetched()
    return made.adapter
