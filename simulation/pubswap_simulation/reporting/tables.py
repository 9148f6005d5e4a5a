"""Rows by tau: what a measure comes to, and how it differs from FedAvg seed by seed."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from pydantic import BaseModel, ConfigDict

from pubswap_simulation.reporting.estimates import Difference, Estimate, estimate, paired
from pubswap_simulation.reporting.methods import BASE, FEDAVG, Method
from pubswap_simulation.reporting.metrics import BEST, FINAL, Measure, base, by_topic
from pubswap_simulation.reporting.section import Section, by_seed
from pubswap_simulation.results import Result


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
    """A measure of every row for which it means something; the base model's only where it is 1."""
    rows: dict[str, dict[int, Estimate]] = {}
    for method in section.methods:
        values = {tau: _values(section, method, tau, measure) for tau in section.taus}
        if any(values.values()):
            rows[method.label] = {
                tau: estimate(list(found.values())) for tau, found in values.items() if found
            }
    return Table(measure=measure.key, title=measure.title, share=measure.share, rows=rows)


def differences(section: Section, measure: Measure) -> Differences:
    """Each row less FedAvg, at the same tau and over the seeds that both have."""
    return _less(section, measure, lambda method: None if method == FEDAVG else FEDAVG)


def beyond(section: Section, measure: Measure) -> Differences:
    """What goes beyond the paper less the same method without it, by seed."""
    return _less(
        section, measure, lambda method: None if method.plain else replace(method, variant=())
    )


def _less(
    section: Section, measure: Measure, other: Callable[[Method], Method | None]
) -> Differences:
    rows: dict[str, dict[int, Difference]] = {}
    for method in section.methods:
        against = other(method)
        if against is None:
            continue
        for tau in section.taus:
            theirs = section.values(against, tau, measure.of)
            found = paired(_values(section, method, tau, measure), theirs)
            if found:
                rows.setdefault(method.label, {})[tau] = found
    return Differences(measure=measure.key, title=measure.title, share=measure.share, rows=rows)


def topics(section: Section) -> dict[str, dict[int, dict[str, Estimate]]]:
    """Final pass@1 by row, tau and topic."""
    names = sorted({topic for result in section.results for topic in by_topic(result)})
    return {
        method.label: {
            tau: {
                topic: estimate(list(values.values()))
                for topic in names
                if (values := by_seed(section.cell(method, tau), _of_topic(topic, method)))
            }
            for tau in section.taus
            if section.cell(method, tau)
        }
        for method in section.methods
    }


def mean_by_name(
    section: Section, of: Callable[[Result], Mapping[str, float]]
) -> dict[str, dict[int, dict[str, Estimate]]]:
    """Figures that each result has by name (of clients), by row, tau and name."""
    rows: dict[str, dict[int, dict[str, Estimate]]] = {}
    for method in section.methods:
        for tau, cell in sorted(section.cells[method].items()):
            if method.summary or method == BASE:
                continue
            found: dict[str, list[float]] = {}
            for results in cell.values():
                for result in results:
                    for name, value in of(result).items():
                        found.setdefault(name, []).append(value)
            if found:
                rows.setdefault(method.label, {})[tau] = {
                    name: estimate(values) for name, values in sorted(found.items())
                }
    return rows


def _values(section: Section, method: Method, tau: int, measure: Measure) -> dict[int, float]:
    if method == BASE:
        return section.values(BASE, tau, base) if measure in (FINAL, BEST) else {}
    return section.values(method, tau, measure.of)


def _of_topic(topic: str, method: Method) -> Callable[[Result], float | None]:
    if method == BASE:
        return lambda result: result.evaluations[0].by_topic.get(topic)
    return lambda result: by_topic(result).get(topic)
