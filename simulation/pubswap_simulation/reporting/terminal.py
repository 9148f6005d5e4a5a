"""The main table on a terminal."""

from rich.console import Console
from rich.table import Table

from pubswap_simulation.reporting.estimates import difference_text, estimate_text, mean_text
from pubswap_simulation.reporting.report import Report, SectionReport

_STYLES = {"holds": "green", "does not": "red", "undecided": "yellow", "not run": "dim"}


def print_report(report: Report, console: Console) -> None:
    """Of each section: final pass@1 by tau with its difference to FedAvg, and the claims."""
    for section in report.sections:
        console.print(_final(section))
        if section.claims:
            console.print(_claims(section))
        for note in section.notes:
            console.print(f"missing: {note}", style="yellow", markup=False)


def _final(section: SectionReport) -> Table:
    rows, differences = section.tables[0].rows, section.differences[0].rows
    table = Table("", title=f"{section.title}: final pass@1 (%), and less FedAvg by seed")
    for tau in section.steps:
        table.add_column(f"τ = {tau}", justify="right")
    for label, row in rows.items():
        cells = []
        for tau in section.steps:
            difference = differences.get(label, {}).get(tau)
            told = f"\n{mean_text(difference, True, signed=True)}" if difference else ""
            cells.append(estimate_text(row.get(tau), share=True) + told)
        table.add_row(label, *cells)
    return table


def _claims(section: SectionReport) -> Table:
    table = Table("claim", "compared", "difference (n: +/=/-)", "verdict")
    told = ""
    for finding in section.claims:
        style = _STYLES[finding.verdict]
        claim, told = "" if finding.claim == told else finding.claim, finding.claim
        table.add_row(
            claim,
            finding.compared,
            difference_text(finding.difference, finding.share),
            f"[{style}]{finding.verdict}[/]",
        )
    return table
