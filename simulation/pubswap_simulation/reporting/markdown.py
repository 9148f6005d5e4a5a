"""`report.md`: every table with n and interval."""

import math
from collections.abc import Iterable, Mapping, Sequence

from pubswap_client.operator.tables import size_text
from pubswap_simulation.reporting.costs import Cost
from pubswap_simulation.reporting.estimates import Difference, Estimate
from pubswap_simulation.reporting.paper import Rows
from pubswap_simulation.reporting.report import ByName, Report, SectionReport
from pubswap_simulation.reporting.tables import Differences, Table

_INTRODUCTION = """\
Means over seeds with their 95 % intervals (Student's t), n in brackets. pass@1 and shares are in
per cent. Differences are paired by seed (paired t); behind each, how many seeds are above, equal
and below. No interval is corrected for the number of comparisons."""

_BEST_MU = """\
The best μ is the one with the highest mean final pass@1 at that τ, chosen on the test set as in
the paper, which favours FedProx. Chosen:"""

_DRIFT = """\
L2 distances between the clients' LoRA factors at the rounds' ends. A round of small τ is short:
compare rows, not columns."""

_BYTES = """\
Of one client in one round, up and down, beside full fine-tuning in float32. Of the layers that are
adapted alone, full fine-tuning sends 2·Σmd = {full} numbers a round where LoRA sends
2·Σr(m+d) = {lora}, {ratio:.1f} times fewer."""

_CLAIMS = """\
A claim holds if the whole interval of the paired difference is on its side of zero, does not if it
is on the other side, and is undecided if the interval covers zero. Differences are in percentage
points, those of drift in its own unit."""


def markdown(
    report: Report, pictures: Mapping[str, Sequence[str]], paper: Mapping[str, Rows]
) -> str:
    """The whole report; `pictures` are file names by section's title, `paper` rows by recipe."""
    parts = ["# Results", _INTRODUCTION]
    for section in report.sections:
        parts += _section(section, pictures.get(section.title, ()))
    if paper:
        parts += _paper(paper)
    return "\n\n".join(parts) + "\n"


def estimate_text(value: Estimate | None, share: bool, signed: bool = False) -> str:
    """`47.3 ± 1.2 (5)`, of a share in per cent."""
    return "" if value is None else f"{mean_text(value, share, signed)} ({value.n})"


def mean_text(value: Estimate, share: bool, signed: bool = False) -> str:
    """`47.3 ± 1.2`, or `47.3` of one seed."""
    half = value.half_width
    digits = _digits(value.mean if half is None else half, share)
    mean = number(value.mean, share, digits, signed)
    return mean if half is None else f"{mean} ± {number(half, share, digits)}"


def difference_text(value: Difference | None, share: bool) -> str:
    """`+1.2 ± 0.8 (5: 4/0/1)`."""
    if value is None:
        return ""
    text = estimate_text(value, share, signed=True)
    return f"{text[:-1]}: {value.above}/{value.equal}/{value.below})"


def number(value: float, share: bool, digits: int, signed: bool = False) -> str:
    """With so many digits behind the point; a share in per cent."""
    return f"{100 * value if share else value:{'+' if signed else ''}.{digits}f}"


def _digits(value: float, share: bool) -> int:
    """One digit for per cent; else as many as show two that count, six at most."""
    if share:
        return 1
    return 2 if value == 0 else min(6, max(0, 1 - math.floor(math.log10(abs(value)))))


def _section(section: SectionReport, pictures: Sequence[str]) -> list[str]:
    parts = [f"## {section.title}", _facts(section)]
    if section.claims:
        parts += ["### What holds of the paper's claims", _CLAIMS, _claims(section)]
    final, best, *rest = range(len(section.tables))
    for place in (final, best):
        parts += _table(section, section.tables[place], section.differences[place])
        if place == final and section.tuned_mu:
            parts.append(_tuned(section))
    parts += [f"![{name}]({name})" for name in pictures]
    drift = [place for place in rest if not section.tables[place].share]
    if any(section.tables[place].rows for place in drift):
        parts += ["### Drift", _DRIFT]
    for place in drift:
        parts += _table(section, section.tables[place], section.differences[place], level=4)
    for place in rest:
        if section.tables[place].share:
            parts += _table(section, section.tables[place], None)
    if section.replaced_by_client:
        parts += ["#### By client", _by_name(section.replaced_by_client)]
    if any(topics for row in section.by_topic.values() for topics in row.values()):
        parts += _topics(section)
    return [*parts, *_costs(section), *_notes(section)]


def _facts(section: SectionReport) -> str:
    steps = "; ".join(
        f"τ = {tau}: " + " or ".join(str(count) for count in counts)
        for tau, counts in section.steps.items()
    )
    seeds = ", ".join(str(seed) for seed in section.seeds)
    return (
        f"Model {section.model}, {section.clients} clients, {section.test_problems} test problems, "
        f"{len(section.runs)} runs, seeds {seeds}. GRPO steps in all at {steps}."
    )


def _claims(section: SectionReport) -> str:
    rows = []
    for finding in section.claims:
        seen = finding.difference
        if seen is None:
            figures = ["0", "", "", ""]
        else:
            mean = mean_text(seen, finding.share, signed=True).split(" ")[0]
            figures = [str(seen.n), mean, _interval(seen, finding.share)]
            figures.append(f"{seen.above}/{seen.equal}/{seen.below}")
        rows.append([finding.claim, finding.compared, *figures, f"**{finding.verdict}**"])
    heads = ["claim", "compared", "n", "difference", "95 % interval", "+/=/-", "verdict"]
    return _grid(heads, rows, left=2)


def _interval(value: Estimate, share: bool) -> str:
    if value.low is None or value.high is None:
        return ""
    digits = _digits((value.high - value.low) / 2, share)
    low, high = (number(end, share, digits, signed=True) for end in (value.low, value.high))
    return f"{low} to {high}"


def _table(
    section: SectionReport, table: Table, differences: Differences | None, level: int = 3
) -> list[str]:
    if not table.rows:
        return []
    heads = ["", *(f"τ = {tau}" for tau in section.steps)]
    marks = "#" * level
    unit = " (%)" if table.share else ""
    parts = [f"{marks} {table.title}{unit}", _by_tau(heads, section, table.rows, table.share)]
    if differences and differences.rows:
        heads = ["less FedAvg, by seed", *heads[1:]]
        parts.append(_by_tau(heads, section, differences.rows, table.share))
    return parts


def _by_tau(
    heads: list[str],
    section: SectionReport,
    rows: Mapping[str, Mapping[int, Estimate]],
    share: bool,
) -> str:
    return _grid(
        heads,
        [
            [label, *(cell_text(row.get(tau), share) for tau in section.steps)]
            for label, row in rows.items()
        ],
    )


def cell_text(value: Estimate | None, share: bool) -> str:
    """What stands in a table: a difference with its signs, a mean without."""
    if isinstance(value, Difference):
        return difference_text(value, share)
    return estimate_text(value, share)


def _tuned(section: SectionReport) -> str:
    chosen = [
        f"{label}: " + ", ".join(f"μ = {mu:g} at τ = {tau}" for tau, mu in row.items())
        for label, row in section.tuned_mu.items()
    ]
    return _BEST_MU + " " + "; ".join(chosen) + "."


def _by_name(rows: ByName) -> str:
    names = sorted({name for row in rows.values() for cell in row.values() for name in cell})
    several = len({tau for row in rows.values() for tau in row}) > 1
    return _grid(
        ["", *names],
        [
            [
                f"{label}; τ = {tau}" if several else label,
                *(estimate_text(cell.get(name), share=True) for name in names),
            ]
            for label, row in rows.items()
            for tau, cell in row.items()
        ],
    )


def _topics(section: SectionReport) -> list[str]:
    """At the largest tau only; the others are in report.json."""
    largest = max(section.steps)
    rows = {
        label: {largest: row[largest]} for label, row in section.by_topic.items() if largest in row
    }
    return [f"### Final pass@1 by topic, τ = {largest} (%)", _by_name(rows)]


def _costs(section: SectionReport) -> list[str]:
    sizes = section.sizes
    said = _BYTES.format(
        full=f"{2 * sizes.adapted_layers:,}",
        lora=f"{2 * sizes.adapter:,}",
        ratio=sizes.adapted_layers / sizes.adapter,
    )
    heads = ["", "τ", "rounds", "adapter up", "adapter down", "responses up", "responses down"]
    heads += ["full fine-tuning", "times fewer", "seconds a run"]
    return ["### Bytes and seconds", said, _grid(heads, [_cost(cost) for cost in section.costs])]


def _cost(cost: Cost) -> list[str]:
    sent = cost.by_client_and_round
    parts = (sent.adapters_up, sent.adapters_down, sent.responses_up, sent.responses_down)
    return [
        cost.row,
        str(cost.tau),
        str(cost.rounds),
        *(size_text(part) for part in parts),
        size_text(cost.full_fine_tuning),
        f"{cost.full_fine_tuning / sent.all:.1f}" if sent.all else "",
        f"{cost.seconds:.0f}",
    ]


def _notes(section: SectionReport) -> list[str]:
    if not section.notes:
        return []
    return ["### What is missing", "\n".join(f"- {note}" for note in section.notes)]


def _paper(paper: Mapping[str, Rows]) -> list[str]:
    parts = [
        "## The paper's own figures",
        "pass@1 of the final checkpoint in per cent, with no interval.",
    ]
    for recipe, rows in paper.items():
        taus = sorted({tau for row in rows.values() for tau in row})
        heads = ["", *(f"τ = {tau}" for tau in taus)]
        cells = [[label, *(f"{row[tau]:.1f}" for tau in taus)] for label, row in rows.items()]
        parts += [f"### {recipe}", _grid(heads, cells)]
    return parts


def _grid(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    rule = ["---" if place < left else "---:" for place in range(len(heads))]
    return "\n".join([line(heads), line(rule), *(line(row) for row in rows)])
