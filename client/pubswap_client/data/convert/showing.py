"""What `pubswap data convert` prints: columns, the first problems, and what it left out."""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from rich.console import Console
from rich.panel import Panel
from rich.table import Column
from rich.table import Table as Shown
from rich.text import Text

from pubswap_client.data.convert.converting import Conversion, parameters
from pubswap_client.data.convert.table import Cell, CellFault
from pubswap_protocol.bounds import plain, printable
from pubswap_protocol.command_line.amounts import first_few
from pubswap_protocol.problems import Problem
from pubswap_protocol.prompts import Prompt, text_of

_MAX_PREVIEW = 2000  # characters of a prompt
_MAX_CELL = 40
_MAX_PLACES = 12


def show_columns(console: Console, conversion: Conversion) -> None:
    """How the table was read, and what becomes of each column."""
    table, roles, surveyed = conversion.table, conversion.roles, conversion.survey
    for line in (f"Read as {table.format}.", *table.notes):
        console.print(plain(line), soft_wrap=True)
    shown = Shown(*(Column(name, overflow="fold") for name in ("column", "becomes", "such as")))
    shown.add_column("filled", justify="right")
    for name in table.columns:
        column = surveyed.columns[name]
        becomes = [_with_reader(target) for target in roles.of(name)] or ["left out"]
        if not column.filled:
            becomes = ["left out: it is empty"]
        if surveyed.marks.get(name) == ",":
            becomes.append("decimal commas")
        if name in surveyed.unclear:
            becomes.append("text: are its commas decimal?")
        example = "" if column.example is None else plain(_short(column.example))
        shown.add_row(plain(name), "; ".join(becomes), example, f"{column.filled:,}")
    console.print(shown)


def _with_reader(target: str) -> str:
    """What a column becomes, and which verifier reads it there."""
    verifier, _ = parameters().get(target.removeprefix("metadata."), (None, None))
    return f"{target} (of the verifier {verifier})" if verifier else plain(target)


def _short(cell: Cell) -> str:
    text = cell.reason if isinstance(cell, CellFault) else str(cell)
    return text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]}…"


def show_problems(
    console: Console, problems: Iterable[Problem], render: Callable[[Prompt], str]
) -> None:
    """The prompts of problems as a model gets them, and the other fields."""
    for problem in problems:
        text = render(problem.prompt)
        more = len(text) - _MAX_PREVIEW
        cut = f"\n… and {more:,} more characters" if more > 0 else ""
        console.print(Panel(printable(text[:_MAX_PREVIEW]) + cut, title=Text(plain(problem.id))))
        for name, value in problem.model_dump(exclude={"id", "prompt"}).items():
            if value:
                shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                console.print(f"{name}: {printable(shown[:_MAX_PREVIEW])}", soft_wrap=True)


def renderer(model: str | None) -> Callable[[Prompt], str]:
    """What writes a prompt as a model gets it; without a model, the prompt itself.

    Raises InvalidSettings if the model or its tokenizer is not available.
    """
    if model is None:
        return text_of
    from pubswap_client.base_model import model_folder
    from pubswap_client.policy.tokenizer import readable_tokenizer
    from pubswap_protocol.settings import RunSettings

    tokenizer, run = readable_tokenizer(model_folder(model)), RunSettings()
    return lambda prompt: str(
        tokenizer.plain.decode(tokenizer.encode_for(run, prompt), skip_special_tokens=False)
    )


def show_record(console: Console, conversion: Conversion) -> None:
    """What was left out, and what was kept but is odd, with the places in the file."""
    unit, table = conversion.table.unit, conversion.table
    for heading, places in (("left out", conversion.left_out), ("kept", conversion.remarks)):
        for reason, numbers in places.items():
            some = first_few(ranges(numbers), _MAX_PLACES)
            line = f"{heading}, {len(numbers):,}: {printable(reason)} ({unit} {some})"
            console.print(line, soft_wrap=True)
    reasons = [*conversion.left_out, *conversion.remarks]
    if table.hint and any(reason.endswith((" is empty", " are empty")) for reason in reasons):
        console.print(table.hint, soft_wrap=True)


def ranges(numbers: Iterable[int]) -> Iterator[str]:
    """Increasing numbers, those that follow one another as 3-7."""
    for _, following in groupby(enumerate(numbers), lambda each: each[1] - each[0]):
        first, *_, last = [number for _, number in following] * 2
        yield str(first) if first == last else f"{first}-{last}"
