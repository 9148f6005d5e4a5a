"""One round's aggregation, from the clients' updates to the resulting blobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pubswap_protocol.errors import InvalidAdapter
from pubswap_protocol.messages import Digest, Drift
from pubswap_protocol.methods.rules import Svd
from pubswap_protocol.settings import AggregationSettings
from pubswap_server.aggregation.counting import counted
from pubswap_server.aggregation.gram import compared, drift_of, sampled
from pubswap_server.aggregation.inputs import RoundInputs, read_updates
from pubswap_server.aggregation.log_lines import LogLine, largest_numbers, standing_out
from pubswap_server.aggregation.outputs import write
from pubswap_server.aggregation.updates import Updates
from pubswap_server.storage.store import BlobStore


@dataclass(frozen=True, slots=True)
class Aggregated:
    """The outcome of a round: digests of its blobs, and lines for the run's log."""

    adapter: Digest
    drift: Drift
    log: tuple[LogLine, ...] = ()
    server_state: Digest | None = None  # the server optimizer's


def aggregate_round(
    inputs: RoundInputs, blobs: BlobStore, into: BlobStore | None = None
) -> Aggregated:
    """Make a round's adapter and its other blobs; the same inputs give the same blobs."""
    updates = read_updates(inputs, blobs)
    state = None if inputs.server_state is None else blobs.path(inputs.server_state)
    sample = sampled(len(inputs.members), inputs.settings.seed, inputs.round)
    try:
        return aggregate(updates, state, inputs.settings.aggregation, into or blobs, sample)
    except InvalidAdapter as error:
        raise InvalidAdapter(f"{error.detail} {largest_numbers(updates)}") from None


# An overflow gives numbers that are not finite, which the checks of the results find.
@np.errstate(over="ignore", invalid="ignore")
def aggregate(
    updates: Updates,
    state: Path | None,
    settings: AggregationSettings,
    store: BlobStore,
    sample: Sequence[int] | None = None,
) -> Aggregated:
    """Aggregate a round by the run's settings.

    `state` is the file of the previous round's `server_state`, if there is one. The same updates
    give the same digests, whatever the order in which they arrived. Drift is measured on a `sample`
    of the clients, and updates that stand out are sought there. Raises InvalidAdapter for a result
    that would be refused as an upload.
    """
    # A round may close with fewer clients than the run's rule needs.
    rule, log = settings.rule.used(len(updates.members)), list[LogLine]()
    if rule is not settings.rule:
        details = {"rule": settings.rule.name, "used": rule.name, "updates": len(updates.members)}
        log.append(LogLine("aggregation fell back", details))
    # Norms and distances are for the report alone, unless updates are clipped or selected by them.
    changes = rule.selects or settings.clip_norm is not None
    pairs, slices = compared(
        updates,
        first=changes or isinstance(rule, Svd),
        sample=None if rule.selects else sample,
    )
    updates, lines = counted(updates, pairs, rule, settings.clip_norm)
    log += lines
    adapter, new_state, lines = write(
        updates,
        updates.slices() if changes else slices,
        rule,
        settings.server_optimizer,
        old_state=state,
        store=store,
    )
    log += lines + standing_out(pairs.members, pairs.norms)
    return Aggregated(adapter, drift_of(pairs.matrix), tuple(log), new_state)
