"""What `pubswap data convert` prints: columns, the first problems, and what it left out."""

import json

from rich.console import Console
from rich.panel import Panel
from rich.table import Column
from rich.table import Table as Shown
from rich.text import Text

from pubswap_client.data.convert.converting import Conversion
from pubswap_protocol.bounds import plain, printable
from pubswap_protocol.command_line.amounts import first_few
from pubswap_protocol.problems import Problem

_MAX_PREVIEW = 2000  # characters of a prompt
_MAX_PLACES = 12
_PROMPTS = """\
Prompts are shown before the model's chat template; `pubswap client doctor` shows one with it."""


def show(console: Console, conversion: Conversion) -> None:
    """How a table was read, its first two problems, and what was left out, with the places."""
    _show_columns(console, conversion)
    for problem in conversion.first:
        _show_problem(console, problem)
    if conversion.first:
        console.print(_PROMPTS, soft_wrap=True)
    for reason, numbers in conversion.left_out.items():
        places = f"{conversion.table.unit} {first_few(numbers, _MAX_PLACES)}"
        line = f"left out, {len(numbers):,}: {printable(reason)} ({places})"
        console.print(line, soft_wrap=True)


def _show_columns(console: Console, conversion: Conversion) -> None:
    """How the table was read, and what becomes of each column."""
    table, roles, surveyed = conversion.table, conversion.roles, conversion.survey
    console.print(plain(f"Read as {table.format}."), soft_wrap=True)
    shown = Shown(*(Column(name, overflow="fold") for name in ("column", "becomes")))
    shown.add_column("filled", justify="right")
    for name in table.columns:
        column = surveyed.columns[name]
        becomes = roles.of(name) or ["left out"]
        if not column.filled:
            becomes = ["left out: it is empty"]
        if surveyed.marks.get(name) == ",":
            becomes.append("decimal commas")
        if name in surveyed.unclear:
            becomes.append("text: are its commas decimal?")
        shown.add_row(plain(name), plain("; ".join(becomes)), f"{column.filled:,}")
    console.print(shown)


def _show_problem(console: Console, problem: Problem) -> None:
    more = len(problem.text) - _MAX_PREVIEW
    cut = f"\n… and {more:,} more characters" if more > 0 else ""
    text = printable(problem.text[:_MAX_PREVIEW]) + cut
    console.print(Panel(text, title=Text(plain(problem.id))))
    for name, value in problem.model_dump(exclude={"id", "prompt"}).items():
        if value:
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            console.print(f"{name}: {printable(shown[:_MAX_PREVIEW])}", soft_wrap=True)
