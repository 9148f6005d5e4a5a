"""`report.md`: the named contrast, a table of methods, topics, costs, and how to make it again."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import PurePath
from statistics import fmean
from tomllib import loads

from pubswap_protocol.command_line.amounts import size_text
from pubswap_simulation.reporting.contrasts import Contrast, Contrasts
from pubswap_simulation.reporting.estimates import Estimate, paired
from pubswap_simulation.reporting.methods import FEDAVG, SILENT
from pubswap_simulation.reporting.section import Section, final
from pubswap_simulation.reporting.table import drift, replaced, traffic
from pubswap_simulation.results import Result

_INTRODUCTION = """\
Means over seeds with their 95 % intervals (Student's t), n in brackets. pass@1 and shares are in
per cent. Differences are paired by seed (paired t), followed by how many seeds are above, equal and
below. Intervals are not corrected for the number of comparisons; corrected p-values say so.
[results.csv](results.csv) has every run and evaluation, for `pandas.read_csv`."""

_PRIMARY = """\
Named before the runs: final pass@1, in points."""

_EXPLORATORY = """\
The same row less every other one at its τ. p-values are of paired t tests, before and after Holm's
correction for their number."""

_METHODS = """\
Drift is the L2 distance between pairs of clients' LoRA factors at the end of a round; rounds are
shorter at small τ. α is the share of responses replaced in public steps."""

_TOPICS = "Means only: few problems of each topic make wide intervals."

_COSTS = """\
One client's bytes in the whole run, sent and received. Seconds are wall-clock time of a simulation
in which all members take turns on one machine: compare them only if every run had an equal share of
a machine."""

_SILENT = """\
Public steps without exchange send responses and get them back as with any exchange. A client
training on public prompts by itself would need none of these bytes."""


def page(
    sections: Sequence[Section],
    pictures: Mapping[str, Sequence[str]],
    contrasts: Contrasts | None = None,
    unfinished: Sequence[str] = (),
) -> str:
    """The whole page; `pictures` are file names by section title, the contrasts' under ""."""
    parts = ["# Results", _INTRODUCTION]
    if contrasts is not None:
        named, others = contrasts
        parts += ["## The primary contrast", _PRIMARY, _contrasts([named])]
        parts += ["### Exploratory", _EXPLORATORY, _contrasts(others)] if others else []
        parts += _shown(pictures.get("", ()))
    for section in sections:
        parts += [*methods(section), _METHODS, *_shown(pictures.get(section.title, ()))]
        parts += [*_topics(section), *_costs(section), *_paper(section.recipe)]
    parts += ["## Make it again", _again(sections, contrasts and contrasts[0])]
    if unfinished:
        parts += ["Not done:", "\n".join(f"- {name}" for name in unfinished)]
    return "\n\n".join(parts) + "\n"


def methods(section: Section) -> list[str]:
    """A section's head, facts and table of methods."""
    lines = []
    for cell in section.cells:
        values = section.values(cell, final)
        apart = paired(values, section.values((FEDAVG, cell[1]), final))
        lines.append(
            [
                cell[0].label,
                str(cell[1]),
                Estimate(values).text() if values else "",
                apart.text() if apart and cell[0] != FEDAVG else "",
                _mean(section.values(cell, drift), share=False),
                _mean(section.values(cell, replaced)),
            ]
        )
    heads = ["row", "τ", "final pass@1", "less FedAvg, by seed", "drift", "α"]
    notes = ["\n".join(f"- {note}" for note in section.notes)] if section.notes else []
    return [f"## {section.title}", _facts(section), *notes, grid(heads, lines)]


def _mean(values: Mapping[int, float], share: bool = True) -> str:
    return Estimate(values).text(share).partition(" (")[0] if values else ""


def _facts(section: Section) -> str:
    results = [result for _, result in section.runs]
    largest = max((result.run for result in results), key=lambda run: run.settings.clients)
    source = PurePath(largest.model.source)
    # A folder's path is private, and one called "model" tells nothing about the model in it.
    name = source.name if source.is_absolute() else largest.model.source
    seeds = ", ".join(str(seed) for seed in sorted({result.seed for result in results}))
    steps = {result.run.settings.rounds * result.run.settings.local_steps for result in results}
    base = Estimate(section.base(lambda result: result.base))
    return (
        f"{'A model' if name == 'model' else f'Model {name}'} of {largest.model.parameters:,} "
        f"parameters, {largest.settings.clients} clients, "
        f"{results[0].evaluations[-1].problems} test problems; "
        f"{' or '.join(map(str, sorted(steps)))} GRPO steps of each client. Runs: {len(results)}. "
        f"Seeds: {seeds}. pass@1 of the base model: {base.text()}."
    )


def _contrasts(contrasts: Iterable[Contrast]) -> str:
    heads = ["contrast", "τ", "difference", "95 % interval", "p", "p, Holm"]
    lines = [
        [
            one.name,
            str(one.tau),
            one.difference.text(),
            one.difference.interval,
            *("" if p is None else f"{p:.2g}" for p in (one.difference.p_value, one.corrected)),
        ]
        for one in contrasts
    ]
    return grid(heads, lines)


def _shown(pictures: Iterable[str]) -> list[str]:
    return [f"![{name.removesuffix('.png').replace('-', ' ')}]({name})" for name in pictures]


def _topics(section: Section) -> list[str]:
    """Final pass@1 by topic at the largest tau; the others are in the table of results."""
    names = sorted({name for _, run in section.runs for name in run.evaluations[-1].by_topic})
    measures = [(partial(_on, name, 0), partial(_on, name, -1)) for name in names]
    scores = {"base model": [section.base(first) for first, _ in measures]}
    for row, tau in section.cells:
        if tau == max(section.taus):
            scores[row.label] = [section.values((row, tau), last) for _, last in measures]
    lines = [
        [label, *(f"{100 * fmean(one.values()):.1f}" if one else "" for one in by_topic)]
        for label, by_topic in scores.items()
    ]
    title = f"### Final pass@1 by topic, τ = {max(section.taus)}"
    return [title, _TOPICS, grid(["row", *names], lines)] if names else []


def _on(topic: str, evaluation: int, result: Result) -> float | None:
    return result.evaluations[evaluation].by_topic.get(topic)


def _costs(section: Section) -> list[str]:
    lines = []
    for row, tau in section.cells:
        results = section.results((row, tau))
        rounds = results[0].run.settings.rounds
        sent = [{kind: rounds * n for kind, n in traffic(one.run).items()} for one in results]
        adapters, responses = (
            fmean(one[f"{what}_up"] + one[f"{what}_down"] for one in sent)
            for what in ("adapters", "responses")
        )
        seconds = f"{fmean(result.seconds for result in results):.0f}"
        sizes = (size_text(size) for size in (adapters, responses, adapters + responses))
        if row.members == "federated":
            lines.append([row.label, str(tau), str(rounds), *sizes, seconds])
    heads = ["row", "τ", "rounds", "adapters", "responses", "together", "seconds"]
    silent = [_SILENT] if any(line[0].startswith(SILENT) for line in lines) else []
    return ["### Bytes and seconds", _COSTS, grid(heads, lines), *silent] if lines else []


def _paper(recipe: str) -> list[str]:
    """The paper's own figures of a recipe."""
    tables = loads(files(__package__).joinpath("paper.toml").read_text(encoding="utf-8"))
    if recipe not in tables:
        return []
    rows = tables[recipe]
    heads = ["row", *(f"τ = {tau}" for tau in rows.pop("taus"))]
    lines = [[label, *(f"{score:.1f}" for score in scores)] for label, scores in rows.items()]
    return ["### The paper's own figures", "Final pass@1, without intervals.", grid(heads, lines)]


def _again(sections: Sequence[Section], primary: Contrast | None) -> str:
    results = [result for section in sections for _, result in section.runs]
    recipes = " and ".join(f"`{name}`" for name in sorted({one.recipe for one in results}))
    codes = [result.code or "unknown" for result in results]
    commits = Counter(code[:8] + code[40:] for code in codes)  # with "-dirty" where it is
    named = f' --primary "{primary.name}"' if primary else ""
    return (
        f"`pubswap simulate RECIPE --sweep --out STORE` makes or continues the runs of a recipe, "
        f"here {recipes}; `pubswap report STORE{named}` makes this page. Runs by commit of the "
        f"code: {', '.join(f'{commit} {count}' for commit, count in commits.most_common())}."
    )


def grid(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose first column is left-aligned."""

    def line(cells: Sequence[str]) -> str:
        # A topic may be any text, including several lines and bars.
        return "| " + " | ".join(" ".join(c.split()).replace("|", "\\|") for c in cells) + " |"

    rule = ["---", *["---:"] * (len(heads) - 1)]
    return "\n".join([line(heads), line(rule), *(line(cells) for cells in lines)])
