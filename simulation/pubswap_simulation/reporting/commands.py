"""`pubswap report`: a store of results as tables, pictures and verdicts."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pubswap_simulation.reporting.report import Report
    from pubswap_simulation.reporting.section import Section

MARKDOWN = "report.md"
DATA = "report.json"
SUMMARY = "summary.html"


def report(
    store: Annotated[Path, typer.Argument(help="The --out of `pubswap simulate`.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for report.md, .json, summary.html and PNGs; by default STORE/report."
        ),
    ] = None,
    paper: Annotated[bool, typer.Option("--paper", help="Add the paper's own figures.")] = False,
    primary: Annotated[
        str | None,
        typer.Option(
            help="The contrast planned before the runs: 'ROW - ROW', as in a table, or "
            "'ROW, τ 48 - ROW, τ 4'."
        ),
    ] = None,
) -> None:
    """Write a report of results: tables, paired differences, curves, and the paper's claims.

    It also works during a sweep, and then lists the runs that are not done.
    """
    from rich.console import Console

    from pubswap_simulation.reporting.report import make_report, read_sections
    from pubswap_simulation.reporting.terminal import print_report
    from pubswap_simulation.results import unfinished

    sections = read_sections(store)
    data = make_report(sections, primary, unfinished(store))
    folder = out or store / "report"
    write(sections, data, folder, paper)
    console = Console(markup=False)
    print_report(data, console)
    console.print(f"written: {folder / MARKDOWN}", soft_wrap=True)


def write(sections: "list[Section]", data: "Report", folder: Path, paper: bool) -> None:
    """Write report.md, report.json, summary.html and the PNGs, replacing an earlier report."""
    from pubswap_simulation.reporting.claims import paper_figures
    from pubswap_simulation.reporting.markdown import markdown
    from pubswap_simulation.reporting.pictures.draw import draw, draw_contrast
    from pubswap_simulation.reporting.summary import summary

    folder.mkdir(parents=True, exist_ok=True)
    pictures = {
        section.title: draw(
            section, folder, "" if len(sections) == 1 else f"{slug(section.title)}-"
        )
        for section in sections
    }
    if data.primary is not None:
        pictures[data.primary.contrast] = draw_contrast(data.primary, folder)
    beside = paper_figures({section.recipe for section in sections}) if paper else {}
    (folder / MARKDOWN).write_text(markdown(data, pictures, beside), encoding="utf-8")
    (folder / SUMMARY).write_text(summary(data, pictures), encoding="utf-8")
    (folder / DATA).write_text(data.model_dump_json(indent=2) + "\n", encoding="utf-8")


def slug(title: str) -> str:
    """A title as part of a file name."""
    return re.sub(r"[^a-z0-9.]+", "-", title.lower()).strip("-")
