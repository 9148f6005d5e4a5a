"""Rows by tau: the mean of a measure, and its difference from FedAvg, paired by seed."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from pubswap_simulation.reporting.estimates import Difference, Estimate, estimate, paired
from pubswap_simulation.reporting.methods import BASE, FEDAVG, Arm
from pubswap_simulation.reporting.metrics import BEST, FINAL, Measure
from pubswap_simulation.reporting.section import Cell, Section, by_seed
from pubswap_simulation.results import Result

T = TypeVar("T")
Figures = Callable[[Result], Mapping[str, float]]
ByName = dict[str, dict[int, dict[str, Estimate]]]


class Table(BaseModel, Generic[T], frozen=True):
    """Means over seeds by row and tau, or differences from another row, paired by seed."""

    measure: str
    title: str
    share: bool
    rows: dict[str, dict[int, T]]


def table(section: Section, measure: Measure) -> Table[Estimate]:
    """A measure of every row that has one; the base model has only pass@1."""
    rows = _rows(section, lambda method, tau: _mean(measured(section, method, tau, measure)))
    return Table[Estimate](**_head(measure), rows=rows)


def differences(section: Section, measure: Measure) -> Table[Difference]:
    """Each row less FedAvg, at the same tau and over the seeds that both have."""
    return _less(section, measure, lambda method: None if method == FEDAVG else FEDAVG)


def beyond(section: Section, measure: Measure) -> Table[Difference]:
    """Each row beyond the paper less the same method without the variant, by seed."""
    return _less(
        section, measure, lambda method: None if method.plain else replace(method, variant=())
    )


def _less(
    section: Section, measure: Measure, reference: Callable[[Arm], Arm | None]
) -> Table[Difference]:
    def of(method: Arm, tau: int) -> Difference | None:
        if (against := reference(method)) is None:
            return None
        values = measured(section, method, tau, measure)
        return paired(values, section.values(against, tau, measure.of))

    return Table[Difference](**_head(measure), rows=_rows(section, of))


def topics(section: Section) -> ByName:
    """Final pass@1 by row, tau and topic; for the base model, that of round 0."""
    return by_name(
        section,
        lambda result: result.evaluations[-1].by_topic,
        lambda result: result.evaluations[0].by_topic,
    )


def by_name(section: Section, figures: Figures, base: Figures = lambda result: {}) -> ByName:
    """Figures of each result's topics, clients or rounds, by row, tau and name.

    `base` gives the figures of the base model.
    """

    def of(method: Arm, tau: int) -> dict[str, Estimate]:
        return _by_name(section.cell(method, tau), base if method == BASE else figures)

    return _rows(section, of)


def _rows(section: Section, of: Callable[[Arm, int], T | None]) -> dict[str, dict[int, T]]:
    """The values of each row and tau that has any."""
    rows: dict[str, dict[int, T]] = {}
    for method in section.methods:
        for tau in section.taus:
            if value := of(method, tau):
                rows.setdefault(method.label, {})[tau] = value
    return rows


def _by_name(cell: Cell, figures: Figures) -> dict[str, Estimate]:
    names = {name for results in cell.values() for result in results for name in figures(result)}

    def mean(name: str) -> Estimate | None:
        return _mean(by_seed(cell, lambda one: figures(one).get(name)))

    return {name: value for name in sorted(names) if (value := mean(name))}


def _mean(values: Mapping[int, float]) -> Estimate | None:
    return estimate(list(values.values())) if values else None


def measured(section: Section, method: Arm, tau: int, measure: Measure) -> dict[int, float]:
    """A measure of a row by seed; for the base model, that of round 0."""
    if method != BASE:
        return section.values(method, tau, measure.of)
    if measure not in (FINAL, BEST):
        return {}
    return section.values(BASE, tau, lambda result: result.base)


def _head(measure: Measure) -> dict[str, Any]:
    return {"measure": measure.key, "title": measure.title, "share": measure.share}
