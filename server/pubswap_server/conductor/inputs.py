"""The inputs of a round's average: their rows in the database, and their files."""

from dataclasses import dataclass

import numpy as np
from sqlalchemy.orm import Session

from pubswap_protocol.errors import Gone, InvalidAdapter
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import AdapterFile, AdapterLayout, sent_layout
from pubswap_protocol.tensors.ranks import Widened
from pubswap_protocol.tensors.update_encoding import view_update
from pubswap_server.aggregation.gram import sampled
from pubswap_server.aggregation.round import Aggregated, aggregate
from pubswap_server.aggregation.updates import Updates
from pubswap_server.database.tables import RoundRow, RunRow
from pubswap_server.runs import rounds
from pubswap_server.storage.store import BlobStore


@dataclass(frozen=True)
class RoundInputs:
    """The inputs of a round's aggregation, with files in the order of the members' names."""

    round: int
    settings: RunSettings
    layout: AdapterLayout
    members: list[str]
    adapters: list[str]
    weights: list[float]
    previous: str
    server_state: str | None


def inputs_of(session: Session, run: RunRow, round_: int) -> RoundInputs:
    """The inputs of a round's aggregation, for rounds from 1 on.

    Raises Gone if some of them were freed.
    """
    updates = rounds.counted_updates(session, run, round_)
    previous = session.get_one(RoundRow, (run.id, round_ - 1))
    adapters = [update.stored for update in updates if update.stored is not None]
    if previous.adapter is None or len(adapters) < len(updates):
        raise Gone(f"The inputs of round {round_} of run {run.id} are no longer kept.")
    settings = run.settings
    return RoundInputs(
        round=round_,
        settings=settings,
        layout=run.model.layout,
        members=[update.member for update in updates],
        adapters=adapters,
        weights=[settings.aggregation.weights.of(update.metrics) for update in updates],
        previous=previous.adapter,
        server_state=previous.server_state,
    )


def aggregate_round(
    inputs: RoundInputs, blobs: BlobStore, into: BlobStore | None = None
) -> Aggregated:
    """Make a round's adapter and its other blobs; the same inputs give the same blobs."""
    settings, updates = inputs.settings, updates_of(inputs, blobs)
    state = None if inputs.server_state is None else blobs.path(inputs.server_state)
    sample = sampled(len(inputs.members), settings.seed, inputs.round)
    try:
        return aggregate(updates, state, settings.aggregation, into or blobs, sample)
    except InvalidAdapter as error:
        raise InvalidAdapter(f"{error.detail} {_farthest(updates)}") from None


def updates_of(inputs: RoundInputs, blobs: BlobStore) -> Updates:
    """A round's updates, read from their files; raises DamagedBlob."""
    settings, rules = inputs.settings, inputs.settings.aggregation
    previous = AdapterFile(blobs.path(inputs.previous), inputs.layout)
    sent = sent_layout(inputs.layout, rules.rule)
    sources = tuple(
        view_update(blobs.path(digest), sent, settings.wire.precision, previous, settings.min_rank)
        for digest in inputs.adapters
    )
    whole = settings.lora.rank
    return Updates(
        members=tuple(inputs.members),
        sources=sources,
        ranks=tuple(each.rank if isinstance(each, Widened) else whole for each in sources),
        weights=tuple(inputs.weights),
        previous=previous,
        weighing=rules.weights,
    )


def _farthest(updates: Updates) -> str:
    """Name the members whose updates hold the largest numbers, for the operator to choose."""
    largest = {
        member: max(float(np.abs(source.tensor(name)).max()) for name in source.layout.tensors)
        for member, source in zip(updates.members, updates.sources, strict=True)
    }
    first = sorted(largest, key=lambda member: -largest[member])[:3]
    numbers = ", ".join(f"{member} {largest[member]:.3g}" for member in first)
    return f"The largest numbers in the updates: {numbers}."
