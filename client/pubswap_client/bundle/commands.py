"""`pubswap bundle make` and `pubswap bundle verify`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pubswap_client.asking import Changes, end_with
from pubswap_client.daemon.signals import until_stopped
from pubswap_client.signed_manifest import SUMS, Kind, faults
from pubswap_protocol.command_line.amounts import size_text
from pubswap_protocol.digests import sha256_of
from pubswap_protocol.files import require_vacant

bundle_commands = typer.Typer(help="Take a run to machines without internet.", no_args_is_help=True)


@bundle_commands.command("make")
def make(
    recipe: Annotated[str, typer.Argument(help="The run's file, or a shipped recipe's name.")],
    out: Annotated[Path, typer.Option(help="The new folder to write.")] = Path("bundle"),
    changes: Changes = None,
    extras: Annotated[
        str, typer.Option(help="PubSwap's extras to install there, such as server,client.")
    ] = "client",
    checkout: Annotated[
        Path, typer.Option(help="The checkout of PubSwap to build wheels from.")
    ] = Path(),
    key: Annotated[
        Path | None, typer.Option(help="Your Ed25519 signing key; created if it does not exist.")
    ] = None,
) -> None:
    """Collect everything that a member without internet needs for a run in one folder.

    The bundle contains PubSwap and its dependencies as wheels, for this machine's platform and
    Python; the base model; the run card, for `pubswap client doctor --run run.json` on a machine
    without a coordinator; and the SHA-256 of each file. Its README.txt lists the commands.

    It never overwrites a folder and never leaves a partial one behind. You can stop it at any time:
    pip and the hub keep their downloads in their caches.
    """
    from pubswap_client.bundle.making import make as make_bundle
    from pubswap_client.recipes.inheritance import parse_set
    from pubswap_client.recipes.recipe import read_recipe
    from pubswap_protocol.command_line.progress_bar import next_stage, progress_bar

    require_vacant(out)
    with until_stopped():
        sound = read_recipe(recipe, parse_set(changes or [])).sound()
        with progress_bar() as progress:
            say = partial(next_stage, progress)
            make_bundle(sound, checkout, extras, out, key, say)
    typer.echo(f"Wrote {out}, {_summed(out)}.")
    typer.echo(f"Send its readers the digest of {SUMS} separately from the folder.")


@bundle_commands.command("verify")
def verify(
    folder: Annotated[Path, typer.Argument(help="The bundle.")],
    key: Annotated[
        Path | None, typer.Option(help="The maker's public key, *.pub, if it is signed.")
    ] = None,
) -> None:
    """Find every changed, missing or added file of a bundle, offline.

    Without a key, anyone who can change the folder can also change its SHA256SUMS. Compare the
    printed digest with the one from the bundle's maker. Before PubSwap is installed, use
    `sha256sum --check SHA256SUMS` to find changed or missing files.

    Exit status: 0 if every file is as it was made, 1 otherwise.
    """
    end_with(faults(folder, key, Kind.BUNDLE))
    signed = f", as the holder of {key} signed it" if key else ""
    typer.echo(f"{folder} is intact{signed}: {_summed(folder)}.")


def _summed(folder: Path) -> str:
    """The size of a bundle, and the digest of its SHA256SUMS."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    text = f"{len(sizes)} files, {size_text(sum(sizes))}"
    return f"{text}; the SHA-256 of {SUMS} is {sha256_of(folder / SUMS)}"
