"""`pubswap report`: a store of results as one table, one page and plots."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pubswap_simulation.reporting.contrasts import Contrasts
    from pubswap_simulation.reporting.section import Section

PAGE = "report.md"
TABLE = "results.csv"


def report(
    store: Annotated[Path, typer.Argument(help="The --out of `pubswap simulate`.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for report.md, results.csv and PNGs; by default STORE/report."),
    ] = None,
    primary: Annotated[
        str | None,
        typer.Option(
            help="The contrast planned before the runs: 'ROW - ROW', as in a table, or "
            "'ROW, τ 48 - ROW, τ 4'."
        ),
    ] = None,
) -> None:
    """Write a report of results: a table of all of them, and a page with intervals and plots.

    It also works during a sweep, and then lists the runs that are not done.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    from pubswap_simulation.reporting.contrasts import contrasts
    from pubswap_simulation.reporting.page import methods
    from pubswap_simulation.reporting.section import read_sections
    from pubswap_simulation.results import unfinished

    sections, missing = read_sections(store), unfinished(store)
    named = contrasts(sections, primary) if primary else None
    folder = out or store / "report"
    others = write(sections, folder, named, missing)
    lines = [part for section in sections for part in methods(section)]
    if named is not None:
        lines.append(f"primary: {named[0].name}, τ {named[0].tau}: {named[0].difference.text()}")
    console = Console(markup=False)
    console.print(Markdown("\n\n".join([*lines, *(f"not done: {name}" for name in missing)])))
    console.print(f"written: {folder / PAGE}", soft_wrap=True)
    if others:  # perhaps the user's own, so they stay
        console.print(f"In {folder}, but not of this report: {', '.join(others)}", soft_wrap=True)


def write(
    sections: "Sequence[Section]",
    folder: Path,
    contrasts: "Contrasts | None" = None,
    unfinished: Sequence[str] = (),
) -> list[str]:
    """Write results.csv, report.md and its PNGs, replacing an earlier report.

    Returns the names of other files in the folder that look like those of a report.
    """
    from pubswap_client import plots
    from pubswap_simulation.reporting.page import page
    from pubswap_simulation.reporting.plots import curves, finals, forest, line_styles
    from pubswap_simulation.reporting.table import write_table

    folder.mkdir(parents=True, exist_ok=True)
    styles = line_styles({row for section in sections for row in section.rows})
    pictures: dict[str, list[str]] = {}
    with plots.look():
        if contrasts is not None:
            plots.save(forest(*contrasts), folder / "contrasts.png")
            pictures[""] = ["contrasts.png"]
        for section in sections:
            prefix = "" if len(sections) == 1 else f"{slug(section.title)}-"
            pictures[section.title] = [f"{prefix}final.png", f"{prefix}curves.png"]
            for name, figure in zip(pictures[section.title], (finals, curves), strict=True):
                plots.save(figure(section, styles), folder / name)
    write_table(sections, folder / TABLE)
    text = page(sections, pictures, contrasts, unfinished)
    (folder / PAGE).write_text(text, encoding="utf-8")
    own = {name for names in pictures.values() for name in names}
    alike = (path.name for kind in ("png", "json") for path in folder.glob(f"*.{kind}"))
    return sorted(set(alike) - own)


def slug(title: str) -> str:
    """A title as part of a file name."""
    return re.sub(r"[^a-z0-9.]+", "-", title.lower()).strip("-")
