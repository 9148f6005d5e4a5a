"""`report.md`: every table with n and interval."""

from collections.abc import Iterable, Mapping, Sequence

from pubswap_protocol.command_line.amounts import size_text
from pubswap_simulation.reporting.claims import Rows
from pubswap_simulation.reporting.contrasts import Contrast
from pubswap_simulation.reporting.costs import KINDS, Cost, CostToTarget
from pubswap_simulation.reporting.measures import FINAL, MEASURES, Measure
from pubswap_simulation.reporting.methods import SILENT
from pubswap_simulation.reporting.report import Report, SectionReport

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

_EXPLAINED = {
    "drift_pairwise": """\
L2 distances between the clients' LoRA factors at the end of each round. Rounds are shorter at small
τ: compare rows, not columns.""",
    "donated_probability": "All tokens weigh the same.",
}

_COSTS = """\
Bytes of one client in one round, up and down, beside full fine-tuning in float32. What a client
downloads at the end of the run is spread over its rounds. A simulation that was stopped and
continued has fetched adapters again; the bytes down include this. Seconds are wall-clock time of a
simulation in which all members take turns on one machine: compare rows by them only if every run
had an equal share of a machine."""

_SILENT = """\
Public steps without exchange send responses and get them back as with any exchange. A client
training on public prompts by itself would need none of these bytes."""

_REACH = """\
The first round whose adapter reaches this pass@1 on the test set, and the cost until then, as means
over seeds: the bytes of one client in both directions, and seconds. If not all seeds reach it, the
cell says how many do."""

_CLAIMS = """\
A claim holds if the whole interval of the paired difference is on its side of zero, does not if it
is on the other side, and is undecided if the interval covers zero, if there are fewer than three
seeds, or if all seeds have exactly the same difference. Differences are in percentage points, or
for drift in its own unit."""

Pictures = Mapping[str, Sequence[str]]  # file names by section title, or by the primary contrast


def markdown(report: Report, pictures: Pictures, paper: Mapping[str, Rows]) -> str:
    """The whole report; `paper` has the paper's rows by recipe."""
    parts = ["# Results", _INTRODUCTION]
    if report.primary is not None:
        parts += ["## The primary contrast", _PRIMARY, _contrasts([report.primary])]
        parts += _shown(pictures.get(report.primary.contrast, ()))
    if report.exploratory:
        parts += ["### Exploratory", _EXPLORATORY, _contrasts(report.exploratory)]
    for section in report.sections:
        parts += _section(section, pictures.get(section.title, ()))
    if paper:
        parts += _paper(paper)
    if report.unfinished:
        parts += ["## Not done", "\n".join(f"- {name}" for name in report.unfinished)]
    return "\n\n".join(parts) + "\n"


def headline(report: Report) -> str:
    """The main tables, for a terminal."""
    parts = []
    for section in report.sections:
        parts += [f"## {section.title}", *_measure(section, FINAL), *_claims(section)]
        parts += _notes(section.notes)
    if report.primary is not None:
        parts.append(f"primary: {report.primary.title}: {report.primary.text(share=True)}")
    return "\n\n".join([*parts, *(f"not done: {name}" for name in report.unfinished)])


def _section(section: SectionReport, pictures: Sequence[str]) -> list[str]:
    parts = [f"## {section.title}", section.facts, *_notes(section.notes)]
    if claims := _claims(section):
        parts += ["### What holds of the paper's claims", _CLAIMS, *claims]
    for measure in MEASURES:
        parts += _measure(section, measure)
    parts += _by_name(section, "topic", "Final pass@1 by topic")
    own = "Final pass@1 on the test set, topics weighted as in each client's own problems"
    parts += _by_name(section, "own_topics", own)
    parts += ["### Pictures", *_shown(pictures)] if pictures else []
    return parts + _costs(section) + _reach(section)


def _shown(pictures: Iterable[str]) -> list[str]:
    return [f"![{name.removesuffix('.png').replace('-', ' ')}]({name})" for name in pictures]


def _notes(notes: Sequence[str]) -> list[str]:
    return ["\n".join(f"- {note}" for note in notes)] if notes else []


def _contrasts(contrasts: Sequence[Contrast]) -> str:
    heads = ["contrast", "τ", "difference", "95 % interval", "p", "p, Holm"]
    rows = [
        [
            one.contrast,
            str(one.tau),
            one.text(share=True),
            one.interval_text(share=True),
            *("" if p is None else f"{p:.2g}" for p in (one.p, one.corrected)),
        ]
        for one in contrasts
    ]
    return grid(heads, rows)


def _claims(section: SectionReport) -> list[str]:
    rows = [
        [one.claim, one.compared, one.difference.text(one.share), f"**{one.verdict}**"]
        for one in section.claims
    ]
    return [grid(["claim", "compared", "difference", "verdict"], rows, left=2)] if rows else []


def _measure(section: SectionReport, measure: Measure) -> list[str]:
    """A measure of each row, and its differences."""
    means: dict[tuple[str, ...], dict[int, str]] = {}
    for mean in section.means:
        if mean.measure == measure.key:
            means.setdefault((mean.row,), {})[mean.tau] = mean.text(measure.share)
    apart: dict[tuple[str, ...], dict[int, str]] = {}
    for one in section.differences:
        if one.measure == measure.key:
            apart.setdefault((one.row, one.less), {})[one.tau] = one.text(measure.share)
    if not means:
        return []
    parts = [f"### {measure.title}" + (" (%)" if measure.share else "")]
    parts += [_EXPLAINED[measure.key]] if measure.key in _EXPLAINED else []
    for heads, rows in ((["row"], means), (["by seed", "less"], apart)):
        if rows:
            columns = [*heads, *(f"τ = {tau}" for tau in section.taus)]
            lines = [
                [*key, *(row.get(tau, "") for tau in section.taus)] for key, row in rows.items()
            ]
            parts.append(grid(columns, lines, left=len(heads)))
    return parts


def _by_name(section: SectionReport, measure: str, title: str) -> list[str]:
    """A measure by topic or client at the largest tau; the others are in report.json."""
    largest, rows = max(section.taus), dict[str, dict[str, str]]()
    for mean in section.means:
        if mean.measure == measure and mean.tau == largest:
            rows.setdefault(mean.row, {})[mean.name] = mean.text(share=True)
    names = sorted({name for row in rows.values() for name in row})
    cells = [[row, *(of.get(name, "") for name in names)] for row, of in rows.items()]
    return [f"### {title}, τ = {largest} (%)", grid(["row", *names], cells)] if rows else []


def _costs(section: SectionReport) -> list[str]:
    heads = ["row", "τ", "rounds", "adapter up", "adapter down", "responses up", "responses down"]
    heads += ["full fine-tuning", "times fewer", "seconds a run"]
    silent = [_SILENT] if any(cost.row.startswith(SILENT) for cost in section.costs) else []
    table = grid(heads, [_cost(cost) for cost in section.costs])
    return ["### Bytes and seconds", _COSTS, table, *silent] if section.costs else []


def _cost(cost: Cost) -> list[str]:
    sent = [getattr(cost, kind) for kind in KINDS]
    return [
        cost.row,
        str(cost.tau),
        str(cost.rounds),
        *(size_text(part) for part in (*sent, cost.full_fine_tuning)),
        f"{cost.full_fine_tuning / sum(sent):.1f}" if any(sent) else "",
        f"{cost.seconds:.0f}",
    ]


def _reach(section: SectionReport) -> list[str]:
    """The cost of reaching a pass@1: a line for each row and tau, columns for each target."""
    targets = sorted({cell.target for cell in section.reach})
    cells: dict[tuple[str, int], list[str]] = {}
    for cell in section.reach:  # target by target
        cells.setdefault((cell.row, cell.tau), []).append(_reached(cell))
    rows = [[row, str(tau), *texts] for (row, tau), texts in cells.items()]
    heads = ["row", "τ", *(f"{100 * target:.0f} %" for target in targets)]
    return ["### The cost of reaching a pass@1", _REACH, grid(heads, rows)] if rows else []


def _reached(cell: CostToTarget) -> str:
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


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A Markdown table whose first `left` columns are left-aligned."""

    def line(cells: Sequence[str]) -> str:
        # A topic may be any text, including several lines and bars.
        return "| " + " | ".join(" ".join(c.split()).replace("|", "\\|") for c in cells) + " |"

    rule = ["---" if column < left else "---:" for column in range(len(heads))]
    return "\n".join([line(heads), line(rule), *(line(row) for row in rows)])
