"""`pubswap client audit`: read and check the ledger of what was sent."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from pubswap_client.command_line import table_console
from pubswap_client.consent import ledger, report
from pubswap_protocol.base.tokenizer import decode, load_tokenizer
from pubswap_protocol.errors import InvalidSettings, LedgerDamaged

audit_commands = typer.Typer(
    help="Read and check the ledger of all that this organisation has sent.",
    no_args_is_help=True,
)

State = Annotated[Path, typer.Option(help="The folder with token and progress.")]


@audit_commands.command("show")
def show(
    state: State = Path("pubswap-state"),
    contents: Annotated[
        bool, typer.Option("--content", help="List each request that had a body, with the body.")
    ] = False,
    model: Annotated[
        Path | None,
        typer.Option(help="The base model's folder, whose tokenizer reads the responses."),
    ] = None,
) -> None:
    """Sum up what was sent, by kind, or list it whole.

    Other selections are for a tool such as jq: the ledger is JSON lines, one file a day.
    """
    folder, decode = _existing(state), _decoder(model)
    try:
        if not contents:
            _print_sums(report.sums(ledger.entries(folder)))
            return
        for entry in ledger.entries(folder):
            if entry.size:
                typer.echo(report.summary_line(entry))
                for shown in report.content(folder, entry, decode):
                    typer.echo(f"    {shown}")
    except ledger.Damaged:
        raise LedgerDamaged(
            "The next entry was changed; `pubswap client audit verify` says which."
        ) from None


@audit_commands.command("verify")
def verify(
    folder: Annotated[
        Path | None, typer.Argument(help="A copy of a ledger; by default the state's own.")
    ] = None,
    state: State = Path("pubswap-state"),
) -> None:
    """Check the ledger for changes, gaps, reordering and a missing end.

    Anyone who can write to the ledger can replace all of it. Give the hash that this command
    prints to somebody else: a later ledger must contain that entry too.

    Exit status: 0 if the ledger is intact, 1 otherwise.
    """
    folder = folder or _existing(state)
    if not any(ledger.day_files(folder)) and not (folder / "head").exists():
        raise InvalidSettings(f"{folder} holds no ledger.")
    with ledger.at_rest(folder):
        verdict = ledger.verify(folder)
    for fault in verdict.faults:
        typer.echo(fault, err=True)
    if verdict.faults:
        raise typer.Exit(1)
    entries = "1 entry" if verdict.entries == 1 else f"{verdict.entries:,} entries"
    typer.echo(f"{entries}, all intact; the last one's hash is")
    typer.echo(verdict.head)


def _print_sums(sums: list[tuple[str, int, int]]) -> None:
    table = Table("what", Column("requests", justify="right"), Column("bytes", justify="right"))
    for kind, number, size in sums:
        table.add_row(kind, f"{number:,}", f"{size:,}")
    table_console().print(table)
    typer.echo("--content lists each, with what was in it.")


def _existing(state: Path) -> Path:
    folder = ledger.ledger_folder(state)
    if not folder.is_dir():
        raise InvalidSettings(
            f"{state} has no ledger: nothing was sent from there. Is it the right --state?"
        )
    return folder


def _decoder(model: Path | None) -> report.Decode | None:
    if model is None:
        return None
    try:
        tokenizer = load_tokenizer((model / "tokenizer.json").read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"{model} has no usable tokenizer.json: {error}") from None
    return lambda tokens: decode(tokenizer, tokens)
