"""A store as tables of records: `report.json`, from which the Markdown is made.

Each table is one for pandas: `DataFrame(report["runs"])`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from pydantic import BaseModel

from pubswap_client.recipes.tables import Value
from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.reporting.claims import ClaimResult, findings
from pubswap_simulation.reporting.contrasts import Contrast, contrasts
from pubswap_simulation.reporting.costs import Cost, CostToTarget, costs, costs_to_target, traffic
from pubswap_simulation.reporting.estimates import Difference, Estimate, estimate, paired
from pubswap_simulation.reporting.measures import MEASURES, Measure, own_topics, topics
from pubswap_simulation.reporting.methods import FEDAVG, Arm
from pubswap_simulation.reporting.section import Section, sections
from pubswap_simulation.results import Result, read_results


class Mean(Estimate, frozen=True):
    """A measure of a row at a tau; `name` is a topic or a client."""

    row: str
    tau: int
    measure: str
    name: str


class RowDifference(Difference, frozen=True):
    """A measure of a row at a tau less that of the row `less`, at the same tau, by seed."""

    row: str
    less: str
    tau: int
    measure: str


class SectionReport(BaseModel, frozen=True):
    """The tables of one comparison; `facts` are its model, sizes, seeds and steps in words."""

    title: str
    facts: str
    taus: list[int]
    means: list[Mean]
    differences: list[RowDifference]
    costs: list[Cost]
    reach: list[CostToTarget]
    claims: list[ClaimResult]
    notes: list[str]


class Report(BaseModel, frozen=True):
    """A store's sections, the contrast named before the runs, and the runs that are not done."""

    primary: Contrast | None = None
    exploratory: list[Contrast] = []
    sections: list[SectionReport]
    runs: list[dict[str, Value | dict[str, Value] | list[float] | None]] = []
    unfinished: list[str] = []


def read_sections(store: Path) -> list[Section]:
    """A store's comparisons; raises InvalidSettings if it holds no result."""
    if not store.is_dir():
        raise InvalidSettings(f"{store} is not a folder; name the --out of `pubswap simulate`.")
    if comparisons := sections(read_results(store)):
        return comparisons
    raise InvalidSettings(
        f"{store} holds no complete run; `pubswap simulate RECIPE --out {store}` makes one, "
        "and continues those that were interrupted."
    )


def make_report(
    sections: Sequence[Section], primary: str | None = None, unfinished: Sequence[str] = ()
) -> Report:
    """All tables of all comparisons; `primary` is a contrast of two rows, and `unfinished` are the
    runs without a result.

    Raises InvalidSettings if the rows of the contrast do not exist.
    """
    named, exploratory = contrasts(sections, primary) if primary else (None, [])
    return Report(
        primary=named,
        exploratory=exploratory,
        sections=[_section(section) for section in sections],
        runs=[_run(section, *run) for section in sections for run in section.runs],
        unfinished=list(unfinished),
    )


def _section(section: Section) -> SectionReport:
    results = [result for _, result in section.runs]
    return SectionReport(
        title=section.title,
        facts=_facts(results),
        taus=section.taus,
        means=list(_means(section, [*MEASURES, *topics(results), *own_topics(results)])),
        differences=list(_differences(section)),
        costs=list(costs(section)),
        reach=list(costs_to_target(section)),
        claims=findings(section),
        notes=list(section.notes),
    )


def _facts(results: Sequence[Result]) -> str:
    largest = max((result.run for result in results), key=lambda run: run.settings.clients)
    source = PurePath(largest.model.source)
    # A folder's path is private, and one called "model" tells nothing about the model in it.
    name = source.name if source.is_absolute() else largest.model.source
    seeds = ", ".join(str(seed) for seed in sorted({result.seed for result in results}))
    settings = [result.run.settings for result in results]
    steps = {(one.local_steps, one.rounds * one.local_steps) for one in settings}
    return (
        f"{'A model' if name == 'model' else f'Model {name}'} of {largest.model.parameters:,} "
        f"parameters, {largest.settings.clients} clients, "
        f"{results[0].evaluations[-1].problems} test problems. Runs: {len(results)}. "
        f"Seeds: {seeds}. GRPO steps of each client in all: "
        + "; ".join(f"τ = {tau}: {total}" for tau, total in sorted(steps))
        + "."
    )


def _means(section: Section, measures: Iterable[Measure]) -> Iterator[Mean]:
    """The mean of each measure, for every row and tau that has any value."""
    for measure in measures:
        for method, tau in _cells(section):
            if values := section.values(method, tau, measure):
                yield Mean(
                    **estimate(list(values.values())).model_dump(),
                    row=method.label,
                    tau=tau,
                    measure=measure.key,
                    name=measure.name,
                )


def _differences(section: Section) -> Iterator[RowDifference]:
    """Each row less FedAvg, and less its own method with the paper's settings."""
    for measure in MEASURES:
        for method, tau in _cells(section):
            values = section.values(method, tau, measure)
            for other in dict.fromkeys((FEDAVG, replace(method, variant=()))):
                apart = paired(values, section.values(other, tau, measure))
                if apart is not None and other != method:
                    yield RowDifference(
                        **apart.model_dump(),
                        row=method.label,
                        less=other.label,
                        tau=tau,
                        measure=measure.key,
                    )


def _cells(section: Section) -> list[tuple[Arm, int]]:
    return [(method, tau) for method in section.methods for tau in section.taus]


def _run(section: Section, row: Arm, result: Result) -> dict[str, Any]:
    """One setting and seed, with the bytes of one client in one round."""
    settings = result.run.settings
    return {
        "section": section.title,
        "row": row.label,
        "tau": settings.local_steps,
        "seed": result.seed,
        "rounds": settings.rounds,
        "base": result.base,
        **{measure.key: measure.of(result) for measure in MEASURES},
        **traffic(result.run),
        "seconds": result.seconds,
        "verifier": result.run.verifier_version,
        "code": result.code,
        "pass_at_1": [evaluation.pass_at_1 for evaluation in result.evaluations],
        "setting": result.setting,
    }
