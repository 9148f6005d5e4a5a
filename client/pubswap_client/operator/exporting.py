"""`pubswap run export`: download a global adapter; `pubswap export verify`: verify a folder."""

import shutil
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from pubswap_client.asking import Run, end_with
from pubswap_client.operator.adapter_folder import BaseOption, Format, FormatOption, take_adapter
from pubswap_client.operator.connecting import connected
from pubswap_client.signed_manifest import Kind, faults, make_key, sign

if TYPE_CHECKING:
    from pubswap_client.coordinator.client import CoordinatorClient


@connected
def export(
    api: "CoordinatorClient",
    run: Run,
    out: Annotated[Path, typer.Option(help="The new folder to write.")] = Path("adapter"),
    which: Annotated[str, typer.Option(help="final, best, or a round's number.")] = "final",
    format_: FormatOption = Format.PEFT,
    model: BaseOption = None,
    key: Annotated[
        Path, typer.Option(help="Your Ed25519 signing key; created if it does not exist.")
    ] = Path("pubswap-data/export-key"),
) -> None:
    """Write a global adapter as a folder with a model card and a signed manifest.

    It never overwrites a folder and never leaves a partial one behind.
    """
    signed = shutil.which("ssh-keygen") is not None

    def finish(making: Path) -> None:
        if signed:
            make_key(key)
            sign(making, [path.name for path in making.iterdir()], key, Kind.EXPORT)

    for line in take_adapter(api, api.whole_run(run), which, out, format_, model, finish):
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
    end_with(faults(folder, key, Kind.EXPORT))
    typer.echo(f"{folder} is as the holder of {key} signed it.")
