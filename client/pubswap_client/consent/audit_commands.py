"""`pubswap client audit`: read, check and export the ledger of what was sent."""

from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from rich.table import Column, Table

from pubswap_client.command_line import end_with, table_console
from pubswap_client.consent import ledger, report
from pubswap_client.consent.ledger import KINDS
from pubswap_client.signed_manifest import Kind, faults
from pubswap_protocol.base.tokenizer import decode, load_tokenizer
from pubswap_protocol.bounds import escaped
from pubswap_protocol.errors import InvalidSettings, LedgerDamaged
from pubswap_protocol.files import require_vacant

audit_commands = typer.Typer(
    help="Read, check and export the ledger of all that this organisation has sent.",
    no_args_is_help=True,
)

State = Annotated[Path, typer.Option(help="The folder with token and progress.")]
Model = Annotated[
    Path | None, typer.Option(help="The base model's folder, whose tokenizer reads the responses.")
]


@audit_commands.command("show")
def show(
    state: State = Path("pubswap-state"),
    kind: Annotated[
        list[str] | None,
        typer.Option(help="responses, adapter, heartbeat, … or question; may be repeated."),
    ] = None,
    day: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], help="One day (UTC), such as 2026-11-23."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="List each request that had a body.")
    ] = False,
    contents: Annotated[
        bool, typer.Option("--content", help="Show what was in each body too.")
    ] = False,
    model: Model = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print entries as JSON lines.")] = False,
) -> None:
    """Sum up what was sent, by kind.

    --all, --kind, --content and --json list it: time, kind, size and digest. Requests without a
    body, which only ask, are listed only with `--kind question`.
    """
    kinds = {*KINDS.values(), "other"}
    for name in kind or ():
        if name not in kinds:
            raise InvalidSettings(
                f"{name!r} is no kind of request; the kinds are {', '.join(sorted(kinds))}."
            )
    folder, decode = _existing(state), _decoder(model)
    date = "" if day is None else f"{day:%F}"
    try:
        entries = (entry for entry in ledger.entries(folder) if entry.at.startswith(date))
        if not (every or kind or contents or as_json):
            _print_sums(report.sums(entries))
            return
        for entry in entries:
            if entry.kind not in kind if kind else not entry.size:
                continue
            typer.echo(escaped(entry.model_dump_json()) if as_json else report.summary_line(entry))
            if contents and not as_json:
                for shown in report.content(folder, entry, decode):
                    typer.echo(f"    {shown}")
    except ledger.Damaged:
        raise LedgerDamaged(
            "The next entry was changed; `pubswap client audit verify` says which."
        ) from None


@audit_commands.command("verify")
def verify(
    folder: Annotated[
        Path | None, typer.Argument(help="An exported report; by default the state's ledger.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="The public key, *.pub, of the report's organisation.")
    ] = None,
    state: State = Path("pubswap-state"),
) -> None:
    """Check the ledger for changes, gaps, reordering and a missing end.

    With `--key`, also check a report's signature and each of its files.

    Anyone who can write to the ledger can replace all of it. Give a signed export, or the hash that
    this command prints, to somebody else: a later ledger must contain that entry too.

    Exit status: 0 if the ledger is intact, 1 otherwise.
    """
    if key is not None:
        if folder is None:
            raise InvalidSettings("Only a report is signed: name its folder, or leave --key out.")
        end_with(faults(folder, key, Kind.AUDIT))
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


@audit_commands.command("export")
def export(
    out: Annotated[Path, typer.Option(help="The new folder to write.")],
    state: State = Path("pubswap-state"),
    model: Model = None,
    key: Annotated[
        Path | None, typer.Option(help="Your Ed25519 key, which signs; by default the state's own.")
    ] = None,
) -> None:
    """Write a signed report for an auditor: the ledger, the bodies, and a readable text.

    It contains the responses that were sent, so give it only to people who may read them.
    """
    require_vacant(out)
    folder, key = _existing(state), key or state / "audit-key"
    with ledger.at_rest(folder):
        head = report.export(folder, out, key, _decoder(model))
    typer.echo(f"Wrote {out / report.REPORT}. The last entry's hash is {head}.")
    typer.echo(f"To verify it, with {key}.pub from you:")
    typer.echo(f"  pubswap client audit verify {quote(str(out))} --key {quote(key.name)}.pub")


def _print_sums(sums: list[tuple[str, int, int]]) -> None:
    table = Table("what", Column("requests", justify="right"), Column("bytes", justify="right"))
    for kind, number, size in sums:
        table.add_row(kind, f"{number:,}", f"{size:,}")
    table_console().print(table)
    typer.echo("--all lists each, --kind KIND those of a kind, --content also what was in them.")


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
