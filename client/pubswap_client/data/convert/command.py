"""`pubswap data convert`."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from rich.console import Console

from pubswap_protocol.command_line.progress_bar import next_stage, progress_bar
from pubswap_protocol.errors import InvalidProblems, InvalidSettings


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
            help="Column of answers, or such a text. Several make a JSON object, for the verifier "
            "json: COLUMN or KEY=COLUMN each."
        ),
    ] = None,
    id_: Annotated[
        str | None, typer.Option("--id", help="Column of ids; by default 'id', or the line.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="Column of topics; by default 'topic', if there is one.")
    ] = None,
    verifier: Annotated[
        str | None,
        typer.Option(help="Column of verifiers, or a verifier's name; by default the run's."),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            help="COLUMN or KEY=COLUMN that goes to `metadata`; by default all further columns."
        ),
    ] = None,
    no_metadata: Annotated[
        bool, typer.Option("--no-metadata", help="Leave all further columns out.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The new JSONL file. Without it, only look.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Show prompts in this model's chat template: folder, or hub id."),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Of a table of text, such as cp1250; by default found.")
    ] = None,
    sheet: Annotated[str | None, typer.Option(help="Of an Excel workbook.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file of --out.")] = False,
) -> None:
    r"""Convert a table to problems, and show how it was read.

    It finds the separator, the encoding, decimal commas and the row with the columns' names, prints
    what becomes of each column and the first two problems, and lists rows that it leaves out in
    OUT-left-out.jsonl. Formulas count by their last value.

    In a text with columns, \n is a line's end, and {{x}} is x in braces. Numbers with decimal
    commas get points, but stay as they are in such a text.
    """
    from pubswap_client.data.convert import showing, writing
    from pubswap_client.data.convert.converting import Conversion, survey
    from pubswap_client.data.convert.opening import open_table
    from pubswap_client.data.convert.roles import CellText, Roles, answer_fields, by_key

    if no_metadata and metadata:
        raise InvalidSettings("--metadata and --no-metadata contradict each other.")
    if (
        out is not None
        and out.exists()
        and not (force and out.is_file() and not out.samefile(file))
    ):
        remedy = "choose another --out" if force else "remove it, choose another --out, or --force"
        raise InvalidSettings(f"{out} already exists: {remedy}.")
    answers = answer or ["answer"]
    roles = Roles(
        prompt=CellText(prompt),
        answer=CellText(answers[0]),
        answers=answer_fields(answers),
        id=id_,
        topic=topic,
        verifier=verifier,
        metadata=by_key(metadata or [], "--metadata") if metadata or no_metadata else None,
    )
    render = showing.renderer(model)
    table = open_table(file, roles.wanted, encoding, sheet)
    roles = roles.of_table(table.columns)
    with progress_bar() as progress:
        next_stage(progress, f"reading {file.name}")
        surveyed = survey(table)
        stage = next_stage(progress, "converting", surveyed.rows)
        conversion = Conversion(table, roles, surveyed)
        writing.write(conversion, out, lambda done: progress.advance(stage, done))
    console = Console(markup=False, highlight=False)
    showing.show_columns(console, conversion)
    showing.show_problems(console, conversion.first, render)
    showing.show_record(console, conversion)
    if not conversion.written:
        raise InvalidProblems(f"{file} has no row that can be a problem; nothing was written.")
    if out is None:
        typer.echo("Nothing was written; --out FILE does that.")
        return
    if listing := writing.write_left_out(conversion, out):
        typer.echo(f"{listing} lists all rows that were left out.")
    typer.echo(f"{out}: {conversion.written:,} problems of {surveyed.rows:,} rows.")
    typer.echo(f"Next: pubswap verifier test NAME --data {quote(str(out))}")
