"""Rows by tau: the mean of a measure, and its difference to FedAvg seed by seed."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from pydantic import BaseModel, ConfigDict

from pubswap_simulation.reporting.estimates import Difference, Estimate, estimate, paired
from pubswap_simulation.reporting.methods import BASE, FEDAVG, Method
from pubswap_simulation.reporting.metrics import BEST, FINAL, Measure
from pubswap_simulation.reporting.section import Section, by_seed
from pubswap_simulation.results import Result

ByName = dict[str, dict[int, dict[str, Estimate]]]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True)

    measure: str
    title: str
    share: bool


class Table(_Table):
    """Means over seeds, by row and tau."""

    rows: dict[str, dict[int, Estimate]]


class Differences(_Table):
    """Differences to another row at the same tau, paired by seed."""

    rows: dict[str, dict[int, Difference]]


def table(section: Section, measure: Measure) -> Table:
    """A measure of every row that has one; the base model's only of pass@1."""
    rows: dict[str, dict[int, Estimate]] = {}
    for method in section.methods:
        for tau in section.taus:
            if values := _values(section, method, tau, measure):
                rows.setdefault(method.label, {})[tau] = estimate(list(values.values()))
    return Table(measure=measure.key, title=measure.title, share=measure.share, rows=rows)


def differences(section: Section, measure: Measure) -> Differences:
    """Each row less FedAvg, at the same tau and over the seeds that both have."""
    return _less(section, measure, lambda method: None if method == FEDAVG else FEDAVG)


def beyond(section: Section, measure: Measure) -> Differences:
    """Each row beyond the paper less the same method without its variant, by seed."""
    return _less(
        section, measure, lambda method: None if method.plain else replace(method, variant=())
    )


def _less(
    section: Section, measure: Measure, reference: Callable[[Method], Method | None]
) -> Differences:
    rows: dict[str, dict[int, Difference]] = {}
    for method in section.methods:
        against = reference(method)
        if against is None:
            continue
        for tau in section.taus:
            theirs = section.values(against, tau, measure.of)
            if difference := paired(_values(section, method, tau, measure), theirs):
                rows.setdefault(method.label, {})[tau] = difference
    return Differences(measure=measure.key, title=measure.title, share=measure.share, rows=rows)


def topics(section: Section) -> ByName:
    """Final pass@1 by row, tau and topic; the base model's is that of round 0."""
    return {
        method.label: {
            tau: _by_name(section, method, tau, _first_topics if method == BASE else _last_topics)
            for tau in section.taus
            if section.cell(method, tau)
        }
        for method in section.methods
    }


def by_name(section: Section, of: Callable[[Result], Mapping[str, float]]) -> ByName:
    """Figures of each result's clients or rounds, by row, tau and their name."""
    rows: ByName = {}
    for method in section.methods:
        for tau in sorted(section.cells[method]):
            if method != BASE and (cell := _by_name(section, method, tau, of)):
                rows.setdefault(method.label, {})[tau] = cell
    return rows


def _by_name(
    section: Section, method: Method, tau: int, of: Callable[[Result], Mapping[str, float]]
) -> dict[str, Estimate]:
    cell = section.cell(method, tau)
    names = {name for results in cell.values() for result in results for name in of(result)}

    def values_of(name: str) -> Mapping[int, float]:
        return by_seed(cell, lambda result: of(result).get(name))

    values = {name: values_of(name) for name in names}
    return {name: estimate(list(values[name].values())) for name in sorted(names) if values[name]}


def _first_topics(result: Result) -> Mapping[str, float]:
    return result.evaluations[0].by_topic


def _last_topics(result: Result) -> Mapping[str, float]:
    return result.evaluations[-1].by_topic


def _values(section: Section, method: Method, tau: int, measure: Measure) -> dict[int, float]:
    if method != BASE:
        return section.values(method, tau, measure.of)
    if measure not in (FINAL, BEST):
        return {}
    return section.values(BASE, tau, lambda result: result.base)
