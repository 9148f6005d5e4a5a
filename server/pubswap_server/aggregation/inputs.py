"""The inputs of a round's aggregation: their rows in the database, and their files."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from pubswap_protocol.errors import Gone
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import AdapterFile, AdapterLayout, sent_layout
from pubswap_protocol.tensors.ranks import FullRankUpdate
from pubswap_protocol.tensors.update_encoding import view_update
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


def read_updates(inputs: RoundInputs, blobs: BlobStore) -> Updates:
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
        ranks=tuple(each.rank if isinstance(each, FullRankUpdate) else whole for each in sources),
        weights=tuple(inputs.weights),
        previous=previous,
        weighing=rules.weights,
    )
