"""Check that a coordinator has every blob, and can recompute every round's adapter to the bit."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, Field
from rich.progress import Progress
from sqlalchemy import Connection, select
from sqlalchemy.orm import Session

from pubswap_protocol.command_line.amounts import size_text
from pubswap_protocol.command_line.progress_bar import tracked
from pubswap_protocol.errors import DamagedBlob, Gone
from pubswap_protocol.messages import Digest
from pubswap_server.admin.opened import Deployment, opened_in_use
from pubswap_server.aggregation.inputs import RoundInputs, inputs_of
from pubswap_server.conductor.leftovers import STRANGE_DAYS
from pubswap_server.conductor.maintenance import recompute
from pubswap_server.database.naming import digests_in, naming_columns, required_columns
from pubswap_server.database.tables import RoundRow, RunRow, UnnamedRow
from pubswap_server.settings import ServerSettings
from pubswap_server.storage.local import LocalBlobs


def required(connection: Connection) -> dict[str, list[str]]:
    """Each blob that rows rely on, with those rows, such as 'updates r1, 2, alice'."""
    uses: dict[str, list[str]] = {}
    for column in required_columns():
        query = select(column, *column.table.primary_key).where(column.is_not(None))
        for digest, *key in connection.execute(query):
            row = ", ".join(str(part) for part in key)
            uses.setdefault(digest, []).append(f"{column.table.name} {row}")
    return uses


class LostBlob(BaseModel):
    """A missing or damaged blob that rows rely on."""

    digest: Digest
    reason: str
    relied_on_by: list[str] = Field(description="Rows: table and primary key.")


class DifferingRound(BaseModel):
    """A round whose recomputed adapter differs from the published one."""

    round: str
    adapter: Digest
    recomputed: Digest


class UncheckedRound(BaseModel):
    """A round that could not be recomputed."""

    round: str
    reason: str


class StorageReport(BaseModel):
    """The blobs and rounds checked, and the faults among them; orphans are no fault."""

    blobs: int = 0
    bytes: int = 0
    lost: list[LostBlob] = []
    rounds: int = Field(default=0, description="Recomputed to the same bits.")
    freed: int = Field(
        default=0, description="Rounds not recomputed because their updates are no longer kept."
    )
    differing: list[DifferingRound] = []
    unchecked: list[UncheckedRound] = []
    orphans: list[Digest] = Field(
        default=[], description="Blobs that no row references (any more)."
    )
    strange: int = Field(
        default=0, description="Orphans that this database never named; they stay for some days."
    )

    @property
    def healthy(self) -> bool:
        return not self.lost and not self.differing

    def text(self) -> str:
        """The report as text, faults first."""
        lines = [
            f"lost: {item.reason} Relied on by {'; '.join(item.relied_on_by)}."
            for item in self.lost
        ]
        lines += [
            f"differs: {item.round} has {item.adapter}, its updates give {item.recomputed}."
            for item in self.differing
        ]
        lines += [f"not recomputed: {item.round}. {item.reason}" for item in self.unchecked]
        whole = f"{self.blobs - len(self.lost)} of {self.blobs} blobs ({size_text(self.bytes)})"
        lines.append(f"{whole} are intact; {self.rounds} rounds gave the same adapter again.")
        if self.freed:
            lines.append(
                f"{self.freed} earlier rounds could not be recomputed: their updates are deleted "
                "(PUBSWAP_KEEP_ROUNDS)."
            )
        if self.orphans:
            lines.append(
                f"{len(self.orphans)} blobs are unreferenced; they are removed in time, "
                f"{self.strange} of them after {STRANGE_DAYS:g} days because this database never "
                "named them."
            )
        if self.lost:
            lines.append("Next: copy the lost blobs from a backup; its blobs/ has the same names.")
        return "\n".join(lines)


def verify(settings: ServerSettings, progress: Progress) -> StorageReport:
    """Check every blob and recompute every finished round, while the coordinator may run.

    Raises InvalidSettings or Unavailable.
    """
    with opened_in_use(settings, settings.data_dir) as deployment:
        stored = {blob.name for blob in deployment.blobs.blobs()}
        with deployment.database.snapshot() as connection, Session(connection) as session:
            uses = required(connection)
            named = digests_in(session, naming_columns())
            known = set(
                session.scalars(select(UnnamedRow.digest).where(UnnamedRow.noted_at.is_(None)))
            )
            rows = session.execute(
                select(RunRow, RoundRow.round, RoundRow.adapter)
                .join(RoundRow, RoundRow.run_id == RunRow.id)
                .where(RoundRow.adapter.is_not(None))
                .order_by(RunRow.created_at, RunRow.id, RoundRow.round)
            )
            rounds, freed = [], 0
            for run, round_, adapter in (row for row in rows if row[0].readable):
                try:  # round 0 has no inputs
                    inputs = inputs_of(session, run, round_) if round_ else None
                    rounds.append((run, round_, adapter, inputs))
                except Gone:
                    freed += 1
        orphans = stored - named
        report = StorageReport(orphans=sorted(orphans), strange=len(orphans - known), freed=freed)
        _check_blobs(deployment, uses, report, progress)
        for run, round_, adapter, inputs in tracked(progress, "rounds", rounds):
            name = f"round {round_} of run {run.id}"
            incoming = deployment.storage.incoming
            try:
                with (
                    gone_if_freed(deployment, inputs),
                    tempfile.TemporaryDirectory(dir=incoming.folder) as folder,
                ):
                    into = LocalBlobs(Path(folder), incoming)
                    again = recompute(run, inputs, deployment.blobs, into)
            except (DamagedBlob, Gone) as error:
                report.unchecked.append(UncheckedRound(round=name, reason=error.detail))
                continue
            finally:
                deployment.forget_fetched()
            if again == adapter:
                report.rounds += 1
            else:
                report.differing.append(
                    DifferingRound(round=name, adapter=adapter, recomputed=again)
                )
        return report


def _check_blobs(
    deployment: Deployment, uses: dict[str, list[str]], report: StorageReport, progress: Progress
) -> None:
    for digest, rows in tracked(progress, "blobs", sorted(uses.items())):
        try:
            report.bytes += deployment.blobs.path(digest).stat().st_size
            deployment.forget_fetched()
        except DamagedBlob as error:
            report.lost.append(LostBlob(digest=digest, reason=error.detail, relied_on_by=rows))
        report.blobs += 1
    if report.lost:  # except blobs released and deleted meanwhile
        with deployment.database.snapshot() as connection:
            uses = required(connection)
        report.lost = [item for item in report.lost if item.digest in uses]


@contextmanager
def gone_if_freed(deployment: Deployment, inputs: RoundInputs | None) -> Iterator[None]:
    """Raise Gone instead of DamagedBlob if rows no longer reference all of a round's inputs."""
    try:
        yield
    except DamagedBlob:
        if inputs is None:
            raise
        with deployment.database.snapshot() as connection:
            uses = required(connection)
        input_digests = {*inputs.adapters, inputs.previous, inputs.server_state}
        if uses.keys() >= input_digests - {None}:
            raise
        raise Gone(f"Updates of round {inputs.round} were freed meanwhile; try again.") from None
