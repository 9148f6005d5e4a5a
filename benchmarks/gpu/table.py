"""The printed table: by rich if it is installed, otherwise plain."""

import sys
from collections.abc import Sequence

from benchmarks.gpu.goals import Line

HEADER = ("part", "what", "measured", "goal", "verdict")


def verdict(line: Line) -> str:
    """The verdict on a line; empty without a goal."""
    return {None: "", True: "met", False: "MISSED"}[line.met]


def show(title: str, lines: Sequence[Line]) -> None:
    """Print the table."""
    rows = [(line.part, line.what, line.value, line.goal, verdict(line)) for line in lines]
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        sys.stdout.write(plain(title, rows))
        return
    table = Table(*HEADER, title=title)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(table, markup=False)


def plain(title: str, rows: Sequence[tuple[str, ...]]) -> str:
    """The table as text."""
    widths = [max(len(row[column]) for row in (HEADER, *rows)) for column in range(len(HEADER))]
    ruled = [HEADER, tuple("-" * width for width in widths), *rows]
    body = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in ruled
    )
    return "\n".join([title, *(line.rstrip() for line in body), ""])
