"""Average rounds again from the stored updates, without some of their members."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

from sqlalchemy import select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import Gone, NotFound, WrongState
from pubswap_protocol.tensors.adapter import AdapterFile
from pubswap_server.aggregation.gram import sampled
from pubswap_server.aggregation.round import Aggregated, aggregate
from pubswap_server.aggregation.updates import moved_to
from pubswap_server.conductor.conductor import RoundInputs, inputs_of, updates_of
from pubswap_server.database.tables import RoundRow, RunRow
from pubswap_server.storage.store import BlobStore


@dataclass(frozen=True)
class KeptRounds:
    """Finished rounds of a run, and what the last of them were averaged from.

    `inputs` are those of consecutive rounds, as far back as updates are kept. `published` has the
    digests of every round's adapter, and `residuals` those of FedEx-LoRA's, by round.
    """

    run: RunRow
    inputs: list[RoundInputs]
    published: Mapping[int, str]
    residuals: Mapping[int, str]

    @classmethod
    def read(cls, session: Session, run: RunRow, last: int | None = None) -> Self:
        """The rounds up to `last`, by default the last finished one; `inputs` may be empty.

        Raises NotFound if it has no adapter yet.
        """
        query = select(RoundRow).where(RoundRow.run_id == run.id).order_by(RoundRow.round)
        rows = [row for row in session.scalars(query) if last is None or row.round <= last]
        published = {row.round: row.adapter for row in rows if row.adapter is not None}
        last = max(published, default=0) if last is None else last
        if last not in published or last == 0:
            which = f"round {last}" if last else "any round"
            raise NotFound(f"Run {run.name} has no adapter of {which} (yet).")
        inputs: list[RoundInputs] = []
        for number in range(last, 0, -1):
            try:
                inputs.insert(0, inputs_of(session, run, number))
            except Gone:
                break
        residuals = {row.round: row.residual for row in rows if row.residual is not None}
        return cls(run, inputs, published, residuals)

    @property
    def first(self) -> int:
        """The first round whose updates are kept."""
        return self.inputs[0].round

    @property
    def last(self) -> int:
        """The last round."""
        return self.inputs[-1].round

    def require_some(self) -> None:
        """Raises Gone if no round can be averaged again."""
        if not self.inputs:
            raise Gone(
                f"No updates of run {self.run.name} are kept up to round {max(self.published)}: "
                "rounds are freed after PUBSWAP_KEEP_ROUNDS of them, and with `pubswap run "
                "archive`. Set it to 0 on the coordinator to keep those of all rounds to come."
            )


@dataclass(frozen=True)
class Start:
    """What a round begins from, by digests: an adapter, and what a server optimizer remembers."""

    adapter: str
    server_state: str | None

    @classmethod
    def published(cls, inputs: RoundInputs) -> Self:
        """The round's own."""
        return cls(inputs.previous, inputs.server_state)


def averaged(
    inputs: RoundInputs,
    without: Collection[str],
    start: Start,
    blobs: BlobStore,
    into: BlobStore,
) -> Aggregated:
    """A round's outcome without some members, by the run's own rule, as blobs of `into`.

    From another `start`, a blob of `into`, each update is the same step as it was. From the round's
    own, and with all members, the outcome is the round's to the bit. Raises WrongState if nobody is
    left.
    """
    left = [n for n, member in enumerate(inputs.members) if member not in without]
    if not left:
        raise WrongState(
            f"Round {inputs.round} was averaged from {' and '.join(inputs.members)} alone: "
            "nothing is left of it. `pubswap run rollback` goes back to a round before."
        )
    updates, settings = updates_of(inputs, blobs).only(left), inputs.settings
    if start.adapter != inputs.previous:
        other = AdapterFile(into.path(start.adapter), inputs.layout)
        updates = moved_to(updates, other, products=settings.aggregation.rule == "svd")
    state = None
    if start.server_state is not None:
        its = blobs if start.server_state == inputs.server_state else into
        state = its.path(start.server_state)
    sample = sampled(len(left), settings.seed, inputs.round)
    return aggregate(updates, state, settings.aggregation, into, sample)
