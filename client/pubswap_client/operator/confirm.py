"""Ask before what cannot be undone."""

import sys
from typing import Annotated

import typer

from pubswap_protocol.command_line.statuses import ERROR, INTERRUPTED
from pubswap_protocol.errors import InvalidSettings

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; needed where there is no terminal.")]


def confirm(consequence: str, *, yes: bool) -> None:
    """Return if a person agrees to the consequence, or has by `--yes`; end the command if not.

    Raises InvalidSettings where nobody can be asked.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidSettings(f"{consequence} Nothing was changed; to do it, add --yes.")
    typer.echo(consequence, err=True)
    try:
        status = None if typer.confirm("Go on?", err=True) else ERROR
    except typer.Abort:  # Ctrl-C
        typer.echo(err=True)
        status = INTERRUPTED
    if status is not None:
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(status)
