"""What several commands are given: names, values instead of a file's, a person's agreement."""

import re
import sys
from typing import Annotated

import typer

from pubswap_protocol.bounds import MAX_NUMBER, NAME_FORM, NAME_PATTERN
from pubswap_protocol.command_line.statuses import ERROR, INTERRUPTED
from pubswap_protocol.errors import InvalidSettings


def valid_name(text: str) -> str:
    """A run's or member's name; says what is allowed of one that cannot be any."""
    if not re.fullmatch(NAME_PATTERN, text):
        raise typer.BadParameter(f"{text!r} is no name: a name is {NAME_FORM}.")
    return text


Run = Annotated[str, typer.Argument(help="The run's id or name.", callback=valid_name)]
Name = Annotated[
    str, typer.Argument(help="The member's name, such as hospital-a.", callback=valid_name)
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; needed where there is no terminal.")]
Round = Annotated[
    int | None,
    typer.Option("--round", min=0, max=MAX_NUMBER, help="By default a finished run's last."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="KEY=VALUE instead of the file's, such as swap.period=4; again."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def confirm(consequence: str, yes: bool) -> None:
    """Return if a person agrees to the consequence, or has by `--yes`; end the command if not.

    Raises InvalidSettings where nobody can be asked.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidSettings(f"{consequence} Nothing was changed; to do it, add --yes.")
    typer.echo(consequence, err=True)
    try:
        status = None if typer.confirm("Continue?", err=True) else ERROR
    except typer.Abort:  # Ctrl-C
        typer.echo(err=True)
        status = INTERRUPTED
    if status is not None:
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(status)
