"""`pubswap run export`: download a global adapter; `pubswap export verify`: verify a folder."""

import shutil
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from pubswap_client.command_line import Run, end_with
from pubswap_client.operator.adapter_folder import BaseOption, Format, FormatOption, take_adapter
from pubswap_client.operator.connecting import (
    DEFAULT_URL,
    CaFile,
    TokenFile,
    Url,
    connect,
    find_token_file,
)
from pubswap_client.signed_manifest import faults, make_key, sign


def export(
    run: Run,
    out: Annotated[Path, typer.Option(help="The new folder to write.")] = Path("adapter"),
    which: Annotated[str, typer.Option(help="final, best, or a round's number.")] = "final",
    format_: FormatOption = Format.PEFT,
    model: BaseOption = None,
    key: Annotated[
        Path | None,
        typer.Option(
            help="Your Ed25519 signing key, by default export-key beside the operator token's "
            "file; created if it does not exist."
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
) -> None:
    """Write a global adapter as a folder with a model card and a signed manifest.

    It never overwrites a folder and never leaves a partial one behind.
    """
    key = key or find_token_file(token_file).with_name("export-key")
    signed = shutil.which("ssh-keygen") is not None

    def finish(making: Path) -> None:
        if signed:
            if (fingerprint := make_key(key)) is not None:
                typer.echo(f"Created a new signing key, {key}, with the fingerprint {fingerprint}.")
                typer.echo("If you have another one already, export again with it, by --key.")
            sign(making, [path.name for path in making.iterdir()], key)

    with connect(url, token_file, ca_file) as api:
        lines = take_adapter(api, api.whole_run(run), which, out, format_, model, finish)
    for line in lines:
        typer.echo(line)
    if not signed:
        typer.echo("It is not signed: install OpenSSH's ssh-keygen and export again.", err=True)
        return
    typer.echo(f"To verify it, with {key}.pub from you:")
    typer.echo(f"  pubswap export verify {quote(str(out))} --key {quote(key.name)}.pub")


def verify(
    folder: Annotated[Path, typer.Argument(help="The exported folder.")],
    key: Annotated[Path, typer.Option(help="The operator's public key, *.pub, from the operator.")],
) -> None:
    """Verify an exported folder against its signed manifest, offline.

    Exit status: 0 if every file is as the operator signed it, 1 otherwise.
    """
    end_with(faults(folder, key))
    typer.echo(f"{folder} is as the holder of {key} signed it.")
