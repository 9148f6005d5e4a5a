"""Arguments, options, questions, tables and endings that several commands share."""

import os
import re
import sys
from typing import Annotated

import typer
from rich.console import Console

from pubswap_protocol.bounds import MAX_NUMBER, NAME_FORM, NAME_PATTERN
from pubswap_protocol.command_line.statuses import ERROR, INTERRUPTED
from pubswap_protocol.errors import InvalidSettings


def valid_name(text: str) -> str:
    """Return a valid run or member name. Raises BadParameter, naming what is allowed."""
    if not re.fullmatch(NAME_PATTERN, text):
        raise typer.BadParameter(f"{text!r} is not a valid name: a name is {NAME_FORM}.")
    return text


Run = Annotated[str, typer.Argument(help="The run's id or name.", callback=valid_name)]
Name = Annotated[
    str, typer.Argument(help="The member's name, such as hospital-a.", callback=valid_name)
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; needed where there is no terminal.")]
Round = Annotated[
    int | None,
    typer.Option("--round", min=0, max=MAX_NUMBER, help="By default the last of a finished run."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="KEY=VALUE overrides it, such as method.period=4; repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_SHOWN = 20  # faults
_UNFOLDED = 1000  # columns


def table_console(markup: bool = False) -> Console:
    """A console on stdout that folds no cell for a pipe or a file, unless COLUMNS is set."""
    folds = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(markup=markup, width=None if folds else _UNFOLDED)


def confirm(consequence: str, yes: bool) -> None:
    """Ask for confirmation, unless `yes` is set, and end the command if it is declined.

    Raises InvalidSettings if there is no terminal to ask on.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidSettings(f"{consequence} Nothing was changed; add --yes to go ahead.")
    typer.echo(consequence, err=True)
    try:
        status = None if typer.confirm("Continue?", err=True) else ERROR
    except typer.Abort:  # Ctrl-C
        typer.echo(err=True)
        status = INTERRUPTED
    if status is not None:
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(status)


def end_with(messages: list[str]) -> None:
    """Print the first of a folder's faults, if there are any, and end the command with status 1."""
    for fault in messages[:_SHOWN]:  # a file's name may contain control characters
        typer.echo(fault if fault.isprintable() else ascii(fault), err=True)
    if len(messages) > _SHOWN:
        typer.echo(f"... and {len(messages) - _SHOWN} more", err=True)
    if messages:
        raise typer.Exit(1)
