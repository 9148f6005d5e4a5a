"""Whether a coordinator still has what it promised: every blob, and every round's adapter."""

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, Field
from sqlalchemy import Column, Connection, select
from sqlalchemy.orm import Session

from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import DamagedBlob, Gone
from pubswap_protocol.messages import Digest
from pubswap_protocol.tensors.adapter import AdapterLayout, encode_adapter, initial_adapter
from pubswap_server.admin.opened import Deployment, opened_in_use
from pubswap_server.admin.progress import Progress
from pubswap_server.conductor import conductor
from pubswap_server.conductor.maintenance import named_digests, naming_columns
from pubswap_server.database.tables import RoundRow, RunRow
from pubswap_server.runs import runs
from pubswap_server.settings import ServerSettings
from pubswap_server.storage.private import make_private
from pubswap_server.storage.spool import Spool
from pubswap_server.storage.store import BlobStore


class ScratchStore:
    """Reads a store's blobs and what was written here; that is gone when the block ends."""

    def __init__(self, blobs: BlobStore, incoming: Spool) -> None:
        self._blobs = blobs
        self._incoming = incoming
        self._made: dict[str, Path] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for path in self._made.values():
            path.unlink(missing_ok=True)

    def write(self, parts: Iterable[bytes]) -> tuple[str, int]:
        """A file of the parts; returns digest and size."""
        made = self._incoming.write(parts)
        self._made[made.digest] = made.path
        return made.digest, made.size

    def path(self, digest: str) -> Path:
        """A local file; raises as BlobStore does."""
        return self._made.get(digest) or self._blobs.path(digest)


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


def recounted(place: Deployment, finished: Finished) -> str:
    """The digest that the round's adapter must have; the blobs must all be there."""
    if finished.inputs is None:
        initial = initial_adapter(finished.layout, finished.seed)
        return digest_of(encode_adapter(finished.layout, initial))
    with ScratchStore(place.blobs, place.storage.incoming) as scratch:
        made = conductor.made_of(scratch, finished.inputs)
    place.forget_fetched()
    return made.adapter


def required(connection: Connection) -> dict[str, list[str]]:
    """Each blob that a row relies on, and the rows, such as 'updates r1, 2, alice'."""
    uses: dict[str, list[str]] = {}
    for column in _stored():
        key = list(column.table.primary_key)
        for digest, *place in connection.execute(select(column, *key).where(column.is_not(None))):
            where = ", ".join(str(part) for part in place)
            uses.setdefault(digest, []).append(f"{column.table.name} {where}")
    return uses


def _stored() -> Iterator[Column[Any]]:
    return (column for column in naming_columns() if column.table.name != "uploads")


class Lost(BaseModel):
    """A blob that rows rely on, and that is not what it should be."""

    digest: Digest
    reason: str
    relied_on_by: list[str] = Field(description="Rows: table and primary key.")


class Differing(BaseModel):
    """A round whose adapter is not what its updates give."""

    round: str
    adapter: Digest
    recomputed: Digest


class Unchecked(BaseModel):
    """A round that could not be computed again."""

    round: str
    reason: str


class StorageReport(BaseModel):
    """What was looked at, and what is wrong; orphans are no fault."""

    blobs: int = 0
    bytes: int = 0
    lost: list[Lost] = []
    rounds: int = Field(default=0, description="Computed again, with the same bits.")
    freed: int = Field(
        default=0, description="Rounds whose updates are not kept any more: not computed again."
    )
    differing: list[Differing] = []
    unchecked: list[Unchecked] = []
    orphans: list[Digest] = Field(default=[], description="Blobs that no row names (any more).")

    @property
    def healthy(self) -> bool:
        """Whether everything is there and as it should be."""
        return not self.lost and not self.differing

    def told(self) -> str:
        """The report for people: what is wrong first."""
        lines = [
            f"lost: {one.reason} Relied on by {'; '.join(one.relied_on_by)}." for one in self.lost
        ]
        lines += [
            f"differs: {one.round} has {one.adapter}, its updates give {one.recomputed}."
            for one in self.differing
        ]
        lines += [f"not computed again: {one.round}, for {one.reason}." for one in self.unchecked]
        whole = f"{self.blobs - len(self.lost)} of {self.blobs} blobs ({self.bytes / 1e6:.1f} MB)"
        lines.append(f"{whole} are whole; {self.rounds} rounds gave the same adapter again.")
        if self.freed:
            lines.append(
                f"{self.freed} earlier rounds could not be computed again: their updates are freed "
                "(PUBSWAP_KEEP_ROUNDS)."
            )
        if self.orphans:
            lines.append(f"{len(self.orphans)} blobs are named by no row; they go in time.")
        if self.lost:
            lines.append("Next: take them from a backup, whose blobs/ has the same names.")
        return "\n".join(lines)


def verify(settings: ServerSettings, progress: Progress) -> StorageReport:
    """Look at every blob and compute every finished round again, beside a running coordinator.

    A step of `progress` is a blob or a round. Raises InvalidSettings or Unavailable.
    """
    make_private(settings.data_dir)
    with (
        tempfile.TemporaryDirectory(prefix="verify-", dir=settings.data_dir) as scratch,
        opened_in_use(settings, Path(scratch)) as place,
    ):
        stored = {blob.name for blob in place.blobs.blobs()}
        with place.snapshot() as connection, Session(connection) as session:
            uses = required(connection)
            known = named_digests(session)
            rounds = finished_rounds(session)
        progress.begin(len(uses) + len(rounds))
        report = StorageReport(orphans=sorted(stored - known))
        _check_blobs(place, uses, report, progress)
        _check_rounds(place, rounds, report, progress)
        return report


def _check_blobs(
    place: Deployment, uses: dict[str, list[str]], report: StorageReport, progress: Progress
) -> None:
    for digest, rows in sorted(uses.items()):
        try:
            report.bytes += place.blobs.path(digest).stat().st_size
            place.forget_fetched()
        except DamagedBlob as error:
            report.lost.append(Lost(digest=digest, reason=error.detail, relied_on_by=rows))
        report.blobs += 1
        progress.step()
    report.lost = _still_lost(place, report.lost)


def _still_lost(place: Deployment, lost: list[Lost]) -> list[Lost]:
    """Without what was given up while we looked, and swept."""
    if not lost:
        return []
    with place.snapshot() as connection:
        uses = required(connection)
    return [one for one in lost if one.digest in uses]


def _check_rounds(
    place: Deployment, rounds: Iterable[Finished], report: StorageReport, progress: Progress
) -> None:
    lost = {one.digest for one in report.lost}
    for finished in rounds:
        if finished.freed:
            report.freed += 1
            progress.step()
            continue
        reason = _not_computable(finished, lost)
        if reason is not None:
            report.unchecked.append(Unchecked(round=finished.name, reason=reason))
        elif (found := recounted(place, finished)) != finished.adapter:
            wrong = Differing(round=finished.name, adapter=finished.adapter, recomputed=found)
            report.differing.append(wrong)
        else:
            report.rounds += 1
        progress.step()


def _not_computable(finished: Finished, lost: set[str]) -> str | None:
    if finished.inputs is None:
        return None
    if not finished.inputs.adapters:
        return "its updates are not recorded any more"
    if lost.intersection(finished.inputs.adapters):
        return "an update's blob is lost"
    if lost.intersection({finished.inputs.previous, finished.inputs.server_state}):
        return "what it began from is lost"
    return None
