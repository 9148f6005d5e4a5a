"""The report's main tables for a terminal."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pubswap_simulation.reporting.estimates import text
from pubswap_simulation.reporting.report import Report, SectionReport

_STYLES = {"holds": "green", "does not": "red", "undecided": "yellow"}


def print_report(report: Report, console: Console) -> None:
    """Print each section's final pass@1 by tau with its difference from FedAvg, and the claims."""
    for section in report.sections:
        console.print(_final(section))
        if section.claims:
            console.print(_claims(section))
        for note in section.notes:
            console.print(note, style="yellow")
    if report.primary is not None:
        primary = report.primary
        figures = primary.text(share=True)
        console.print(f"primary: {primary.title}: {figures}")
    for name in report.unfinished:
        console.print(f"not done: {name}", style="yellow")


def _final(section: SectionReport) -> Table:
    rows, differences = section.tables[0].rows, section.differences[0].rows
    table = Table("", title=f"{section.title}: final pass@1 (%), and less FedAvg by seed")
    for tau in section.steps:
        table.add_column(f"τ = {tau}", justify="right")
    for label, row in rows.items():
        cells = []
        for tau in section.steps:
            difference = differences.get(label, {}).get(tau)
            second = f"\n{difference.mean_text(share=True)}" if difference else ""
            cells.append(text(row.get(tau), share=True) + second)
        table.add_row(label, *cells)
    return table


def _claims(section: SectionReport) -> Table:
    table = Table("claim", "compared", "difference (n: +/=/-)", "verdict")
    last = ""
    for result in section.claims:
        table.add_row(
            "" if result.claim == last else result.claim,
            result.compared,
            text(result.difference, result.share),
            Text(result.verdict, _STYLES[result.verdict]),
        )
        last = result.claim
    return table
