"""`pubswap report`: a store of results as tables, verdicts and plots."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pubswap_simulation.reporting.report import Report
    from pubswap_simulation.reporting.section import Section

MARKDOWN = "report.md"
DATA = "report.json"


def report(
    store: Annotated[Path, typer.Argument(help="The --out of `pubswap simulate`.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for report.md, report.json and PNGs; by default STORE/report."),
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
    from rich.markdown import Markdown

    from pubswap_simulation.reporting.markdown import headline
    from pubswap_simulation.reporting.report import make_report, read_sections
    from pubswap_simulation.results import unfinished

    sections = read_sections(store)
    data = make_report(sections, primary, unfinished(store))
    folder = out or store / "report"
    write(sections, data, folder, paper)
    console = Console(markup=False)
    console.print(Markdown(headline(data)))
    console.print(f"written: {folder / MARKDOWN}", soft_wrap=True)


def write(sections: "list[Section]", data: "Report", folder: Path, paper: bool) -> None:
    """Write report.md, report.json and the PNGs, replacing an earlier report."""
    from pubswap_client import plots
    from pubswap_simulation.reporting.claims import paper_figures
    from pubswap_simulation.reporting.markdown import markdown
    from pubswap_simulation.reporting.plots import by_seed, figures, line_styles, shown

    folder.mkdir(parents=True, exist_ok=True)
    styles = line_styles({row for section in sections for row in shown(section)})
    pictures: dict[str, list[str]] = {}
    with plots.look():
        if data.primary is not None:
            plots.save(by_seed(data.primary), folder / "primary.png")
            pictures[data.primary.contrast] = ["primary.png"]
        for section in sections:
            prefix = "" if len(sections) == 1 else f"{slug(section.title)}-"
            for name, figure in figures(section, styles):
                plots.save(figure, folder / f"{prefix}{name}.png")
                pictures.setdefault(section.title, []).append(f"{prefix}{name}.png")
    beside = paper_figures({section.recipe for section in sections}) if paper else {}
    (folder / MARKDOWN).write_text(markdown(data, pictures, beside), encoding="utf-8")
    (folder / DATA).write_text(data.model_dump_json(indent=2) + "\n", encoding="utf-8")


def slug(title: str) -> str:
    """A title as part of a file name."""
    return re.sub(r"[^a-z0-9.]+", "-", title.lower()).strip("-")
