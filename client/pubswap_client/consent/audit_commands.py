"""`pubswap client audit`: read and check the ledger of what was sent."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.table import Column, Table
from safetensors.numpy import load

from pubswap_client.command_line import table_console
from pubswap_client.consent import ledger
from pubswap_client.signed_manifest import SIGNATURE
from pubswap_protocol.base.tokenizer import decode, load_tokenizer
from pubswap_protocol.bounds import escaped
from pubswap_protocol.digests import digest_of_file
from pubswap_protocol.errors import InvalidSettings

Decode = Callable[[NDArray[np.int32]], str]

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
    if not contents:
        _print_sums(ledger.entries(folder))
        return
    for entry in ledger.entries(folder):
        if entry.size:
            typer.echo(_summary_line(entry))
            for shown in content(folder, entry, decode):
                typer.echo(f"    {shown}")


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
    if (folder / SIGNATURE).exists():
        typer.echo(
            "An earlier version signed this report, and the signature was not checked: "
            "`ssh-keygen -Y verify -n pubswap-audit` checks it, and `sha256sum -c` the files.",
            err=True,
        )
    if verdict.faults:
        raise typer.Exit(1)
    entries = "1 entry" if verdict.entries == 1 else f"{verdict.entries:,} entries"
    typer.echo(f"{entries}, all intact; the last one's hash is")
    typer.echo(verdict.head)


def _summary_line(entry: ledger.Entry) -> str:
    """One entry: 2026-11-23 08:47:01 UTC  responses  round 3, public step 2  12 bytes  blake3:…."""
    places = {"round": entry.round, "public step": entry.public_step}
    where = ", ".join(f"{name} {place}" for name, place in places.items() if place is not None)
    return (
        f"{entry.at[:19].replace('T', ' ')} UTC  {entry.kind:10}  "
        f"{where or f'{entry.method} {entry.target}'}  {entry.size:,} bytes  {entry.digest}"
    )


def content(folder: Path, entry: ledger.Entry, decode: Decode | None) -> Iterator[str]:
    """An entry's body as lines; responses as text or, without `decode`, as token ids."""
    body = ledger.body_path(folder, entry.digest)
    if entry.content is not None:
        yield escaped(json.dumps(entry.content, ensure_ascii=False))
    elif entry.kind == "enrolment":
        yield "the invite, a secret"
    elif entry.kept and entry.kind != "responses":
        yield f"in the ledger's {body.relative_to(folder)}"
    elif entry.kept and (not body.is_file() or digest_of_file(body) != entry.digest):
        yield "not the body that was sent: see `pubswap client audit verify`"
    elif entry.kept:
        arrays = load(body.read_bytes())
        responses = iter(np.split(arrays["tokens"], np.cumsum(arrays["lengths"])))
        for prompt, lengths in zip(arrays["prompts"].tolist(), arrays["lengths"], strict=True):
            for number, _ in enumerate(lengths, 1):
                tokens = next(responses)
                said = decode(tokens) if decode else tokens.tolist()
                text = escaped(json.dumps(said, ensure_ascii=False))
                yield f"public prompt {prompt}, response {number}: {text}"


def _print_sums(entries: Iterable[ledger.Entry]) -> None:
    """Print each kind of request, how many there were, and the bytes of their bodies."""
    sizes = defaultdict[str, list[int]](list)
    for entry in entries:
        sizes[entry.kind].append(entry.size)
    table = Table("what", Column("requests", justify="right"), Column("bytes", justify="right"))
    for kind, each in sorted(sizes.items()):
        table.add_row(kind, f"{len(each):,}", f"{sum(each):,}")
    table_console().print(table)
    typer.echo("--content lists each, with what was in it.")


def _existing(state: Path) -> Path:
    folder = ledger.ledger_folder(state)
    if not folder.is_dir():
        raise InvalidSettings(
            f"{state} has no ledger: nothing was sent from there. Is it the right --state?"
        )
    return folder


def _decoder(model: Path | None) -> Decode | None:
    if model is None:
        return None
    try:
        tokenizer = load_tokenizer((model / "tokenizer.json").read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"{model} has no usable tokenizer.json: {error}") from None
    return lambda tokens: decode(tokenizer, tokens)
