"""A finished round, computed once more from what the members sent."""

import hashlib
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from pubswap_protocol.adapter import AdapterFile, digest_of, encode_adapter, initial_adapter
from pubswap_server import conductor, runs
from pubswap_server.admin.place import Place
from pubswap_server.aggregation import FedIT
from pubswap_server.tables import RoundRow, RunRow


@dataclass(frozen=True)
class Finished:
    """A round that ended with an adapter, and what that was made of; round 0 of the seed alone."""

    run: str
    seed: int
    adapter: str
    inputs: conductor.Aggregation

    @property
    def name(self) -> str:
        """For a report."""
        return f"round {self.inputs.round} of run {self.run}"


def finished_rounds(session: Session) -> list[Finished]:
    """All of them, of all runs."""
    found = []
    for run in session.scalars(select(RunRow).order_by(RunRow.created_at, RunRow.id)):
        rows = session.scalars(
            select(RoundRow)
            .where(RoundRow.run_id == run.id, RoundRow.adapter.is_not(None))
            .order_by(RoundRow.round)
        )
        for row in rows:
            assert row.adapter is not None
            inputs = conductor.inputs_of(session, run, row.round)
            found.append(Finished(run.id, runs.settings_of(run).seed, row.adapter, inputs))
    return found


def recounted(place: Place, finished: Finished) -> str:
    """The digest that the round's adapter must have; the blobs must all be there."""
    inputs = finished.inputs
    if inputs.round == 0:
        return digest_of(
            encode_adapter(inputs.layout, initial_adapter(inputs.layout, finished.seed))
        )
    with ExitStack() as fetched:
        files = []
        for digest in inputs.adapters:
            path = place.blobs.path(digest)
            fetched.callback(place.release, path)
            files.append(AdapterFile(path, inputs.layout))
        return _digest_of_parts(FedIT().aggregate(files, inputs.weights))


def _digest_of_parts(parts: Iterable[bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return f"sha256:{found.hexdigest()}"
