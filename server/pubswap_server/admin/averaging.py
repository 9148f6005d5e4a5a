"""Average rounds again from their stored updates, without some members, into PEFT folders."""

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sqlalchemy import select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import Gone, NotFound, WrongState
from pubswap_protocol.files import require_vacant, whole_folder
from pubswap_protocol.tensors.adapter import AdapterFile, open_stack
from pubswap_protocol.tensors.peft_folder import write_peft_folder
from pubswap_server.aggregation.gram import sampled
from pubswap_server.aggregation.round import Aggregated, aggregate
from pubswap_server.aggregation.stacking import stacked
from pubswap_server.aggregation.updates import moved_to
from pubswap_server.conductor.inputs import RoundInputs, inputs_of, updates_of
from pubswap_server.database.tables import RoundRow, RunRow
from pubswap_server.storage.local import LocalBlobs
from pubswap_server.storage.spool import Spool
from pubswap_server.storage.store import BlobStore


@dataclass(frozen=True)
class RetainedRounds:
    """Finished rounds of a run, and the inputs of the last ones.

    `inputs` belong to consecutive rounds, as far back as updates are kept. `published` maps each
    round to its adapter's digest, `residuals` to its FedEx-LoRA residual's.
    """

    run: RunRow
    inputs: list[RoundInputs]
    published: Mapping[int, str]
    residuals: Mapping[int, str]

    @classmethod
    def read(cls, session: Session, run: RunRow, last: int | None = None) -> Self:
        """The rounds up to `last`, by default the last finished one; `inputs` may be empty.

        Raises NotFound if that round has no adapter.
        """
        query = select(RoundRow).where(RoundRow.run_id == run.id).order_by(RoundRow.round)
        rows = [row for row in session.scalars(query) if last is None or row.round <= last]
        published = {row.round: row.adapter for row in rows if row.adapter is not None}
        last = max(published, default=0) if last is None else last
        if last not in published or last == 0:
            which = f"round {last}" if last else "any round"
            raise NotFound(f"Run {run.name} has no adapter of {which} yet, or no longer has one.")
        inputs: list[RoundInputs] = []
        for number in range(last, 0, -1):
            try:
                inputs.insert(0, inputs_of(session, run, number))
            except Gone:
                break
        residuals = {row.round: row.residual for row in rows if row.residual is not None}
        return cls(run, inputs, published, residuals)

    def earlier_residuals(self, round_: int) -> list[str]:
        """The residuals of the earlier rounds, in order."""
        return [self.residuals[n] for n in sorted(self.residuals) if n < round_]


def averaged(
    inputs: RoundInputs,
    without: Collection[str],
    previous: Aggregated | None,
    blobs: BlobStore,
    into: BlobStore,
) -> Aggregated:
    """Aggregate a round by the run's own rule without some members, into blobs of `into`.

    `previous` is the previous round, recomputed with its blobs in `into`, or None for the run's
    own. If its adapter differs from the run's, each update is moved so that it stays the same step.
    From the run's own and with all members, the result is the round's to the bit.
    Raises WrongState if no member is left.
    """
    remaining = [n for n, member in enumerate(inputs.members) if member not in without]
    if not remaining:
        raise WrongState(
            f"Round {inputs.round} was averaged from {' and '.join(inputs.members)} alone: "
            "nothing is left of it. `pubswap run rollback` returns to an earlier round."
        )
    updates, settings = updates_of(inputs, blobs).only(remaining), inputs.settings
    if previous is not None and previous.adapter != inputs.previous:
        other = AdapterFile(into.path(previous.adapter), inputs.layout)
        updates = moved_to(updates, other, products=settings.aggregation.rule == "svd")
    state, its = (inputs.server_state, blobs) if previous is None else (previous.server_state, into)
    file = None if state is None else its.path(state)
    sample = sampled(len(remaining), settings.seed, inputs.round)
    return aggregate(updates, file, settings.aggregation, into, sample)


@contextmanager
def new_folder(out: Path) -> Iterator[tuple[Path, LocalBlobs]]:
    """An owner-only folder that becomes `out` once it is complete, and a temporary blob store.

    Until then both are beside `out`, and a failure removes them. Raises InvalidSettings if `out`
    already exists.
    """
    out = out.absolute()
    require_vacant(out)
    with (
        whole_folder(out, 0o700) as folder,
        tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch,
        closing(Spool(Path(scratch, "incoming"))) as incoming,
    ):
        yield folder, LocalBlobs(Path(scratch, "blobs"), incoming)


def write_adapter(folder: Path, run: RunRow, files: Sequence[Path]) -> None:
    """Write an adapter, stacked with any FedEx-LoRA residuals after it, as a PEFT folder."""
    settings, model = run.settings, run.model
    adapter = files[0].read_bytes()
    if len(files) > 1:
        _, parts = stacked(model.layout, [open_stack(file, model.layout) for file in files])
        adapter = b"".join(parts)
    write_peft_folder(folder, adapter, settings.lora, model, model.source)
