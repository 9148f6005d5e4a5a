"""Which rule a round is aggregated by: the run's, or what stands in for it with too few updates."""

from dataclasses import dataclass, field
from typing import Any

from pubswap_protocol.settings import AggregationSettings
from pubswap_server.aggregation.fedit import FedIT
from pubswap_server.aggregation.krum import MultiKrum
from pubswap_server.aggregation.robust import Median, TrimmedMean
from pubswap_server.aggregation.rule import Aggregator


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the run's log."""

    kind: str
    details: dict[str, Any] = field(default_factory=dict)


def rule_for(settings: AggregationSettings, updates: int) -> tuple[Aggregator, list[Note]]:
    """The rule for so many updates, with a note if it is not the run's.

    A round may close with fewer clients than the run has. Multi-Krum then gives way to the median,
    which stands fewer than half of whoever came; a trimmed mean of too few is the median too.
    """
    name = settings.rule
    if name == "median":
        return Median(), []
    if name == "trimmed_mean":
        dropped = settings.dropped(updates)
        return (TrimmedMean(dropped), []) if dropped else (Median(), [_instead(settings, updates)])
    if name == "multi_krum":
        if updates < 2 * settings.krum_f + 3:
            return Median(), [_instead(settings, updates)]
        return MultiKrum(settings.krum_f, settings.krum_m), []
    return FedIT(), []


def _instead(settings: AggregationSettings, updates: int) -> Note:
    details = {"rule": settings.rule, "used": "median", "updates": updates}
    return Note("aggregation fell back", details)
