"""One round's aggregation, from the clients' updates to the resulting blobs."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pubswap_protocol.messages import Digest, Drift
from pubswap_protocol.methods.rules import Rule, Svd
from pubswap_protocol.settings import AggregationSettings
from pubswap_protocol.tensors.adapter import LARGEST_DERIVED, AdapterFile
from pubswap_server.aggregation.gram import (
    Clipped,
    GramSum,
    Matrix,
    drift_of,
    gram_of,
    norms_of,
    squared_distances,
)
from pubswap_server.aggregation.means import Means, Note, rule_for
from pubswap_server.aggregation.server_optimizer import (
    adapter_bytes,
    state_bytes,
    state_layout,
)
from pubswap_server.aggregation.truncation import Truncation
from pubswap_server.aggregation.updates import Updates
from pubswap_server.storage.store import BlobStore

STANDS_OUT = "update stands out"
OUTLIER_RATIO = 20.0  # of an update's norm to the median of the others'


@dataclass(frozen=True, slots=True)
class Aggregated:
    """The outcome of a round: digests of its blobs, and notes for the run's log."""

    adapter: Digest
    drift: Drift
    notes: tuple[Note, ...] = ()
    server_state: Digest | None = None  # the server optimizer's


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
    rule, notes = rule_for(settings.rule, len(updates.sources))
    gram, members = None, updates.members
    passing = GramSum(updates, sample)  # drift for the report alone needs no pass of its own
    if rule.selects or settings.clip_norm is not None:
        # A rule that selects compares all pairs. Clipping needs only each update's own norm.
        gram = gram_of(updates, None if rule.selects else sample)
        updates, more = _prepared(updates, gram, rule, settings.clip_norm)
        notes += more
    if rule.weighs:
        notes += bounded_weights(updates)
    means = Means(updates, rule, passing if gram is None else None)
    optimizer, new_state = settings.server_optimizer, None
    if isinstance(settings.rule, Svd):
        gram = gram_of(updates, sample) if gram is None else gram
        truncation = Truncation(updates)
        adapter, _ = store.write(truncation.adapter())
        notes.append(Note("rank truncated", {"left_out": truncation.left_out}))
    elif not optimizer.memory:
        adapter, _ = store.write(means.adapter())
    else:
        layout = state_layout(means.updates.layout, optimizer)
        old = AdapterFile(state, layout) if state is not None else None
        new_state, _ = store.write(state_bytes(means, optimizer, old))
        new = AdapterFile(store.path(new_state), layout)
        new.check(LARGEST_DERIVED)
        adapter, _ = store.write(adapter_bytes(means.updates.previous, optimizer, new))
    AdapterFile(store.path(adapter), updates.previous.layout).check()
    gram = passing.matrix if gram is None else gram
    drift = drift_of(gram)
    if sample is not None and len(gram) < len(members):
        members = tuple(members[n] for n in sample)
    notes += standing_out(members, np.sqrt(np.diag(gram)).tolist())
    return Aggregated(adapter, drift, tuple(notes), new_state)


def bounded_weights(updates: Updates) -> list[Note]:
    """Notes on members whose share of the mean is smaller than their weight asks for."""
    notes, total = [], math.fsum(updates.weights)
    for member, weight, share in zip(updates.members, updates.weights, updates.shares, strict=True):
        if share < (asked := weight / total) * (1 - 1e-9):  # less is a rounding error
            notes.append(Note("weight bounded", {"member": member, "asked": asked, "share": share}))
    return notes


def standing_out(members: Sequence[str], norms: Sequence[float]) -> list[Note]:
    """Notes on updates many times as long as the others: from a mistake, or a hostile member."""
    notes = []
    for n, (member, norm) in enumerate(zip(members, norms, strict=True)):
        others = [*norms[:n], *norms[n + 1 :]]
        median = statistics.median(others) if others else 0.0
        if 0 < OUTLIER_RATIO * median < norm:
            details = {"member": member, "norm": norm, "median_of_others": median}
            notes.append(Note(STANDS_OUT, details))
    return notes


def _prepared(
    updates: Updates, gram: Matrix, rule: Rule, clip: float | None
) -> tuple[Updates, list[Note]]:
    """The updates that count, with clipped norms, and notes on the members clipped or left out."""
    notes = []
    by = [1.0] * len(updates.sources)
    if clip is not None:
        whole = len(gram) == len(updates.sources)
        norms = (np.sqrt(np.diag(gram)) if whole else norms_of(updates)).tolist()
        bound, sources = clip * statistics.median(norms), list(updates.sources)
        for n, norm in enumerate(norms):
            if norm > bound and (scale := bound / norm) < 1:
                by[n] = scale
                sources[n] = Clipped(sources[n], updates.previous, scale)
                details = {"member": updates.members[n], "norm": norm, "scale": scale}
                notes.append(Note("update clipped", details))
        updates = replace(updates, sources=tuple(sources))
    if rule.selects:
        selected = rule.select(squared_distances(gram * np.outer(by, by)))
        excluded = sorted(set(range(len(updates.members))) - set(selected))
        notes += [Note("update excluded", {"member": updates.members[n]}) for n in excluded]
        updates = updates.only(selected)
    return updates, notes
