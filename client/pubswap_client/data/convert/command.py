"""`pubswap data convert`."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from rich.console import Console

from pubswap_protocol.command_line.progress_bar import next_stage, progress_bar
from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.files import require_vacant


def convert_command(
    file: Annotated[
        Path,
        typer.Argument(help="The table: CSV, TSV, Excel (.xlsx), Parquet, a JSON array or JSONL."),
    ],
    prompt: Annotated[
        str,
        typer.Option(help="Column of prompts, or a text with columns in braces: '{Subject}: ...'."),
    ] = "prompt",
    answer: Annotated[
        list[str] | None,
        typer.Option(
            help="Column of answers. KEY=COLUMN, or several, make a JSON object, for the verifier "
            "json."
        ),
    ] = None,
    id_: Annotated[
        str | None, typer.Option("--id", help="Column of ids; by default 'id', or the line.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="Column of topics; by default 'topic', if there is one.")
    ] = None,
    metadata: Annotated[
        list[str] | None, typer.Option(help="COLUMN or KEY=COLUMN that goes to `metadata`.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The new JSONL file. Without it, only look.")
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Of a table of text, such as cp1250; by default found.")
    ] = None,
    sheet: Annotated[
        str | None, typer.Option(help="Of an Excel workbook; by default the first.")
    ] = None,
) -> None:
    r"""Convert a table to problems, and show how it was read.

    The first row has the columns' names. It finds the separator, the encoding and decimal commas,
    prints what becomes of each column and the first two problems, and lists rows that it leaves
    out in OUT-left-out.jsonl. Columns named id, topic, verifier and metadata become these fields;
    further ones are left out, unless --metadata names them. answers.text.0 is a part of a nested
    value: the first item of `text` in the column `answers`.

    In a text with columns, \n is a line's end, and {{x}} is x in braces. Numbers with decimal
    commas get points, but stay as they are in such a text.
    """
    from pubswap_client.data.convert.converting import Conversion, survey, write, write_left_out
    from pubswap_client.data.convert.opening import open_table
    from pubswap_client.data.convert.roles import CellText, Roles, answer_fields, by_key
    from pubswap_client.data.convert.showing import show

    if out is not None:
        require_vacant(out)
    roles = Roles(
        prompt=CellText(prompt),
        answers=answer_fields(answer or ["answer"]),
        id=id_,
        topic=topic,
        metadata=by_key(metadata or [], "--metadata"),
    )
    table = open_table(file, wanted=roles.wanted, encoding=encoding, sheet=sheet)
    table = table.with_parts(roles.wanted)
    table.require(roles.wanted, file)
    roles = roles.of_table(table.columns)
    with progress_bar() as progress:
        next_stage(progress, f"reading {file.name}")
        surveyed = survey(table)
        stage = next_stage(progress, "converting", surveyed.rows)
        conversion = Conversion(table, roles, surveyed)
        problems = progress.track(conversion, task_id=stage)
        if out is not None:
            write(problems, out)
        else:
            for _ in problems:
                pass
    show(Console(markup=False, highlight=False), conversion)
    if not conversion.written:
        raise InvalidProblems(f"{file} has no row that can be a problem; nothing was written.")
    if out is None:
        typer.echo("Nothing was written; --out FILE does that.")
        return
    if listing := write_left_out(conversion, out):
        typer.echo(f"{listing} lists all rows that were left out.")
    typer.echo(f"{out}: {conversion.written:,} problems of {surveyed.rows:,} rows.")
    typer.echo(f"Next: pubswap verifier test NAME --data {quote(str(out))}")
