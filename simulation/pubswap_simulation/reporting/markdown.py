"""`report.md`: every table with n and interval."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pubswap_protocol.command_line.amounts import size_text
from pubswap_simulation.reporting.claims import Rows
from pubswap_simulation.reporting.contrasts import Contrast
from pubswap_simulation.reporting.costs import Cost, Reach
from pubswap_simulation.reporting.estimates import Difference, Estimate, grid, text
from pubswap_simulation.reporting.methods import SILENT
from pubswap_simulation.reporting.pictures.draw import Picture
from pubswap_simulation.reporting.report import Report, SectionReport
from pubswap_simulation.reporting.tables import ByName, Table

_INTRODUCTION = """\
Means over seeds with their 95 % intervals (Student's t), n in brackets. pass@1 and shares are in
per cent. Differences are paired by seed (paired t), followed by how many seeds are above, equal and
below. Intervals are not corrected for the number of comparisons; corrected p-values say so.
Pictures show intervals for three or more seeds."""

_PRIMARY = """\
Named before the runs. Final checkpoint, in points."""

_EXPLORATORY = """\
The same row less every other one. p-values are of paired t tests, before and after Holm's
correction for their number; below 0.05, a difference is distinguishable from zero."""

_BEST_MU = """\
The best μ is the one with the highest mean final pass@1 at that τ, on the seeds that every μ has.
It is chosen on the test set as in the paper, which favours FedProx. Chosen:"""

_DRIFT = """\
L2 distances between the clients' LoRA factors at the end of each round. Rounds are shorter at small
τ: compare rows, not columns."""

_BEYOND = """\
Each row less the same method with the paper's own setting, at the same τ and seeds."""

_BYTES = """\
Bytes of one client in one round, up and down, beside full fine-tuning in float32. What a client
downloads at the end of the run is spread over its rounds. Counting only the adapted layers, full
fine-tuning sends 2·Σmd = {full} numbers a round and LoRA 2·Σr(m+d) = {lora}, {ratio:.1f} times
fewer. A simulation that was stopped and continued has fetched adapters again; the bytes down
include this."""

_REACH = """\
The first round whose adapter reaches this pass@1 on the test set, and the cost until then, as means
over seeds: the bytes of one client in both directions, and the seconds of a simulation in which all
members take turns on one machine. If not all seeds reach it, the cell says how many do."""

_SECONDS = """\
Seconds are wall-clock time and include the effect of whatever else ran on the machine. Compare rows
by them only if every run had an equal share of a machine."""

_SILENT = """\
{row}: its clients send responses and get them back as with any exchange, {responses} a round, which
the bytes above include. A client training on public prompts by itself would need none of that."""

_DONATED = """\
Mean probability of donated tokens under their receiver's own policy before the step, and the share
of them that the clip stopped, in per cent. All tokens weigh the same."""

_OWN_TOPICS = """\
On the test set, with topics weighted as in the client's own private problems."""

_BY_TOPIC = "### Final pass@1 by topic, τ = {tau} (%)"
_ON_OWN_TOPICS = "### Final pass@1 on each client's own topics, τ = {tau} (%)"

_CLAIMS = """\
A claim holds if the whole interval of the paired difference is on its side of zero, does not if it
is on the other side, and is undecided if the interval covers zero, if there are fewer than three
seeds, or if all seeds have exactly the same difference. Differences are in percentage points, or
for drift in its own unit."""


def markdown(
    report: Report, pictures: Mapping[str, Sequence[Picture]], paper: Mapping[str, Rows]
) -> str:
    """The whole report; `pictures` by section title or contrast, `paper` rows by recipe."""
    parts = ["# Results", _INTRODUCTION, *contrasts_parts(report, pictures)]
    for section in report.sections:
        parts += _section(section, pictures.get(section.title, ()))
    if paper:
        parts += _paper(paper)
    if report.unfinished:
        parts += ["## Not done", "\n".join(f"- {name}" for name in report.unfinished)]
    return "\n\n".join(parts) + "\n"


def contrasts_parts(report: Report, pictures: Mapping[str, Sequence[Picture]]) -> list[str]:
    """The primary and the exploratory contrasts, if the report has them."""
    if report.primary is None:
        return []
    parts = ["## The primary contrast", _PRIMARY, _contrasts([report.primary])]
    parts += _shown(pictures.get(report.primary.contrast, ()), "primary")
    if report.exploratory:
        parts += ["### Exploratory", _EXPLORATORY, _contrasts(report.exploratory)]
    return parts


def _contrasts(contrasts: Sequence[Contrast]) -> str:
    heads = ["contrast", "τ", "n", "difference", "95 % interval", "+/=/-", "p", "p, Holm"]
    if all(contrast.corrected is None for contrast in contrasts):
        heads.pop()
    rows = [
        [
            contrast.contrast,
            str(contrast.tau),
            *_figures(contrast, share=True),
            *("" if p is None else f"{p:.2g}" for p in (contrast.p, contrast.corrected)),
        ][: len(heads)]
        for contrast in contrasts
    ]
    return grid(heads, rows)


def _section(section: SectionReport, pictures: Sequence[Picture]) -> list[str]:
    measured = {
        table.measure: (table, differences)
        for table, differences in zip(section.tables, section.differences, strict=True)
    }
    shown = partial(_shown, pictures)
    parts = [f"## {section.title}", facts(section)]
    if section.claims:
        parts += ["### What holds of the paper's claims", _CLAIMS, _claims(section)]
    parts += _table(section, *measured["final"])
    if section.tuned_mu:
        parts.append(_tuned(section))
    parts += shown("arms") + shown("final") + _table(section, *measured["best"])
    parts += shown("curves") + _beyond(section)
    drift = [measured[key] for key in ("drift_pairwise", "drift_from_mean", "drift_at_end")]
    if any(table.rows for table, _ in drift):
        parts += ["### Drift", _DRIFT]
        parts += [part for tables in drift for part in _table(section, *tables, level=4)]
    parts += shown("drift") + _table(section, measured["replaced"][0])
    if section.replaced_by_client:
        parts += ["#### By client", _by_name(section.replaced_by_client)]
    parts += shown("replaced") + _donated(section)
    parts += _at_largest(section, _BY_TOPIC, section.by_topic) + shown("topics")
    parts += _at_largest(section, _ON_OWN_TOPICS, section.on_own_topics, _OWN_TOPICS)
    if rewards := shown("rewards"):
        parts += ["### Rewards in training", *rewards, *shown("clients")]
    parts += _costs(section) + reach_parts(section)
    if section.notes:
        parts += ["### Notes", "\n".join(f"- {note}" for note in section.notes)]
    return parts


def _shown(pictures: Sequence[Picture], kind: str) -> list[str]:
    return [f"![{one.caption}]({one.name})" for one in pictures if one.kind == kind]


def facts(section: SectionReport) -> str:
    """The model, the sizes, the seeds and the steps."""
    steps = "; ".join(
        f"τ = {tau}: " + " or ".join(str(count) for count in counts)
        for tau, counts in section.steps.items()
    )
    seeds = ", ".join(str(seed) for seed in section.seeds)
    # A folder called "model" tells nothing about the model in it.
    model = "A model" if section.model == "model" else f"Model {section.model}"
    return (
        f"{model} of {section.sizes.model:,} parameters, {section.clients} clients, "
        f"{section.test_problems} test problems. Runs: {len(section.runs)}. Seeds: {seeds}. "
        f"GRPO steps of each client in all: {steps}."
    )


def _claims(section: SectionReport) -> str:
    rows = [
        [
            result.claim,
            result.compared,
            *_figures(result.difference, result.share),
            f"**{result.verdict}**",
        ]
        for result in section.claims
    ]
    heads = ["claim", "compared", "n", "difference", "95 % interval", "+/=/-", "verdict"]
    return grid(heads, rows, left=2)


def _figures(difference: Difference, share: bool) -> list[str]:
    mean, *_ = difference.mean_text(share).split(" ")
    return [str(difference.n), mean, difference.interval_text(share), difference.signs]


def _table(
    section: SectionReport,
    table: Table[Estimate],
    differences: Table[Difference] | None = None,
    level: int = 3,
) -> list[str]:
    if not table.rows:
        return []
    unit = " (%)" if table.share else ""
    parts = [f"{'#' * level} {table.title}{unit}", _by_tau("", section, table)]
    if differences is not None and differences.rows:
        parts.append(_by_tau("less FedAvg, by seed", section, differences))
    return parts


def _beyond(section: SectionReport) -> list[str]:
    tables = [table for table in section.beyond if table.rows]
    if not tables:
        return []
    parts = ["### Beyond the paper", _BEYOND]
    for table in tables:
        parts += [f"#### {table.title}", _by_tau("less without it, by seed", section, table)]
    return parts


def _by_tau(corner: str, section: SectionReport, table: Table[Any]) -> str:
    rows = [
        [label, *(text(row.get(tau), table.share) for tau in section.steps)]
        for label, row in table.rows.items()
    ]
    return grid([corner, *(f"τ = {tau}" for tau in section.steps)], rows)


def _tuned(section: SectionReport) -> str:
    chosen = [
        f"{label}: " + ", ".join(f"μ = {mu:g} at τ = {tau}" for tau, mu in row.items())
        for label, row in section.tuned_mu.items()
    ]
    return _BEST_MU + " " + "; ".join(chosen) + "."


def _by_name(rows: ByName) -> str:
    columns = {name for row in rows.values() for cell in row.values() for name in cell}
    names = sorted(columns, key=_counting)
    several = len({tau for row in rows.values() for tau in row}) > 1
    return grid(
        ["", *names],
        [
            [
                f"{label}; τ = {tau}" if several else label,
                *(text(cell.get(name), share=True) for name in names),
            ]
            for label, row in rows.items()
            for tau, cell in row.items()
        ],
    )


def _counting(name: str) -> list[tuple[int, str]]:
    """A sort key that puts 10 after 9."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def _donated(section: SectionReport) -> list[str]:
    parts = _at_largest(section, "#### Mean probability", section.donated_probability)
    parts += _at_largest(section, "#### Share that the clip stops", section.donated_clip_share)
    title = f"### Donated tokens by round, τ = {max(section.steps)}"
    return [title, _DONATED, *parts] if parts else []


def _at_largest(section: SectionReport, title: str, rows: ByName, *explained: str) -> list[str]:
    """A table of the largest tau only, if it has any values; the others are in report.json."""
    largest = max(section.steps)
    shown = {label: {largest: row[largest]} for label, row in rows.items() if row.get(largest)}
    return [title.format(tau=largest), *explained, _by_name(shown)] if shown else []


def _costs(section: SectionReport) -> list[str]:
    sizes = section.sizes
    explanation = _BYTES.format(
        full=f"{2 * sizes.adapted_layers:,}",
        lora=f"{2 * sizes.adapter:,}",
        ratio=sizes.adapted_layers / sizes.adapter,
    )
    heads = ["", "τ", "rounds", "adapter up", "adapter down", "responses up", "responses down"]
    heads += ["full fine-tuning", "times fewer", "seconds a run"]
    return [
        "### Bytes and seconds",
        explanation,
        grid(heads, [_cost(cost) for cost in section.costs]),
        _SECONDS,
    ]


def _cost(cost: Cost) -> list[str]:
    sent = cost.by_client_and_round
    return [
        cost.row,
        str(cost.tau),
        str(cost.rounds),
        *(size_text(part) for _, part in sent),
        size_text(cost.full_fine_tuning),
        f"{cost.full_fine_tuning / sent.all:.1f}" if sent.all else "",
        f"{cost.seconds:.0f}",
    ]


def reach_parts(section: SectionReport) -> list[str]:
    """What it costs to reach a pass@1: a line for each row and tau, columns for each target."""
    targets = sorted({cell.target for cell in section.reach})
    if not targets:
        return []
    cells: dict[tuple[str, int], list[str]] = {}
    for cell in section.reach:  # target by target
        cells.setdefault((cell.row, cell.tau), []).append(_reach(cell))
    rows = [[row, str(tau), *texts] for (row, tau), texts in cells.items()]
    heads = ["method", "τ", *(f"{100 * target:.0f} %" for target in targets)]
    parts = ["### What it costs to reach a pass@1", _REACH, grid(heads, rows), _SECONDS]
    return parts + [_silent(cost) for cost in section.costs if cost.row.startswith(SILENT)]


def _silent(cost: Cost) -> str:
    sent = cost.by_client_and_round
    responses = size_text(round(sent.responses_up + sent.responses_down))
    row = f"{cost.row}, τ = {cost.tau}"
    return _SILENT.format(row=row[0].upper() + row[1:], responses=responses)


def _reach(cell: Reach) -> str:
    if cell.rounds is None or cell.bytes_of_a_client is None or cell.seconds is None:
        return f"{cell.reached} of {cell.n}"
    sent = size_text(round(cell.bytes_of_a_client))
    return f"{cell.rounds:.1f} rounds, {sent}, {cell.seconds:.0f} s"


def _paper(paper: Mapping[str, Rows]) -> list[str]:
    parts = [
        "## The paper's own figures",
        "pass@1 of the final checkpoint in per cent, with no interval.",
    ]
    for recipe, rows in paper.items():
        taus = sorted({tau for row in rows.values() for tau in row})
        heads = ["", *(f"τ = {tau}" for tau in taus)]
        cells = [[label, *(f"{row[tau]:.1f}" for tau in taus)] for label, row in rows.items()]
        parts += [f"### {recipe}", grid(heads, cells)]
    return parts
