"""A whole store as data: `report.json`, from which the Markdown is made."""

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import cast

from pydantic import BaseModel

from pubswap_client.recipes.tables import Value
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.model import ModelCard
from pubswap_simulation.reporting.claims import ClaimResult, findings
from pubswap_simulation.reporting.contrasts import Contrast, contrasts
from pubswap_simulation.reporting.costs import (
    Bytes,
    Cost,
    PayloadSizes,
    Reach,
    costs,
    reach,
    sizes,
    traffic,
)
from pubswap_simulation.reporting.estimates import Difference, Estimate
from pubswap_simulation.reporting.metrics import (
    BEST,
    FINAL,
    MEASURES,
    PAIRWISE,
    donated_clip_share,
    donated_probability,
    on_own_topics,
    replaced_by_client,
)
from pubswap_simulation.reporting.section import Section, sections
from pubswap_simulation.reporting.tables import (
    ByName,
    Table,
    beyond,
    by_name,
    differences,
    table,
    topics,
)
from pubswap_simulation.results import Result, read_results, value_of


class Run(BaseModel, frozen=True):
    """One setting and seed."""

    row: str
    setting: dict[str, Value]
    tau: int
    seed: int
    rounds: int
    base: float
    final: float
    best: float
    pass_at_1: list[float]
    drift_pairwise: float | None
    drift_from_mean: float | None
    drift_at_end: float | None
    replaced: float | None
    by_client_and_round: Bytes
    seconds: float
    code: str | None


class SectionReport(BaseModel, frozen=True):
    """All tables of one comparison, with rows by label and columns by tau."""

    title: str
    recipe: str
    problem: dict[str, Value | None]
    model: str
    clients: int
    test_problems: int
    seeds: list[int]
    steps: dict[int, list[int]]
    tables: list[Table[Estimate]]
    differences: list[Table[Difference]]
    beyond: list[Table[Difference]]
    tuned_mu: dict[str, dict[int, float]]
    replaced_by_client: ByName
    donated_probability: ByName
    donated_clip_share: ByName
    by_topic: ByName
    on_own_topics: ByName
    sizes: PayloadSizes
    costs: list[Cost]
    reach: list[Reach]
    claims: list[ClaimResult]
    notes: list[str]
    runs: list[Run]


class Report(BaseModel, frozen=True):
    """A store's sections, the contrast named before the runs, and the runs that are not done."""

    primary: Contrast | None = None
    exploratory: list[Contrast] = []
    sections: list[SectionReport]
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
        unfinished=list(unfinished),
    )


def _section(section: Section) -> SectionReport:
    results = section.results
    largest = max(results, key=lambda result: result.run.settings.clients).run
    return SectionReport(
        title=section.title,
        recipe=section.recipe,
        problem=dict(section.problem),
        model=_name(largest.model),
        clients=largest.settings.clients,
        test_problems=results[0].evaluations[-1].problems,
        seeds=sorted({result.seed for result in results}),
        steps={tau: _steps(results, tau) for tau in section.taus},
        tables=[table(section, measure) for measure in MEASURES],
        differences=[differences(section, measure) for measure in MEASURES],
        beyond=[beyond(section, measure) for measure in (FINAL, BEST, PAIRWISE)],
        tuned_mu=_tuned(section),
        replaced_by_client=by_name(section, replaced_by_client),
        donated_probability=by_name(section, donated_probability),
        donated_clip_share=by_name(section, donated_clip_share),
        by_topic=topics(section),
        on_own_topics=by_name(section, on_own_topics),
        sizes=sizes(largest),
        costs=list(costs(section)),
        reach=reach(section),
        claims=findings(section),
        notes=list(section.notes),
        runs=[_run(method.label, result) for method, result in section.runs],
    )


def _name(model: ModelCard) -> str:
    """A hub id, or a folder's last part, because its path on this machine is private."""
    source = PurePath(model.source)
    return source.name if source.is_absolute() else model.source


def _steps(results: Iterable[Result], tau: int) -> list[int]:
    """Total GRPO steps of the runs at a tau: one number unless they differ."""
    settings = (result.run.settings for result in results)
    return sorted({one.rounds * tau for one in settings if one.local_steps == tau})


def _tuned(section: Section) -> dict[str, dict[int, float]]:
    """The mu chosen for each FedProx summary row, by tau."""
    return {
        method.label: {
            tau: cast(float, value_of(next(iter(cell.values()))[0].run.settings, "method.mu"))
            for tau in section.taus
            if (cell := section.cell(method, tau))
        }
        for method in section.methods
        if method.name == "fedprox" and method.summary
    }


def _run(row: str, result: Result) -> Run:
    settings = result.run.settings
    return Run(
        row=row,
        setting=result.setting,
        tau=settings.local_steps,
        seed=result.seed,
        rounds=settings.rounds,
        base=result.base,
        pass_at_1=[evaluation.pass_at_1 for evaluation in result.evaluations],
        by_client_and_round=traffic(result.run),
        seconds=result.seconds,
        code=result.code,
        **{measure.key: measure.of(result) for measure in MEASURES},
    )
