"""`pubswap admin`: commands for the coordinator's machine, with access to its data."""

import sys
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pubswap_protocol.bounds import escaped
from pubswap_protocol.command_line.sharing import Command, option_of, sharing
from pubswap_server.options import DATA, Panels, ServerOptions

if TYPE_CHECKING:
    from pubswap_server.settings import ServerSettings

admin_commands = typer.Typer(
    help="Back up, restore, verify and adopt a coordinator's data.",
    no_args_is_help=True,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def with_settings(panels: Panels) -> Callable[[Command], Command]:
    """Give a command the settings as its first argument, and those in `panels` as its options."""
    options = (
        option_of(ServerOptions, name, envvar=f"PUBSWAP_{name.upper()}", rich_help_panel=panel)
        for panel, names in panels.items()
        for name in names
    )
    return sharing(_settings, *options)


def _settings(**options: Any) -> "ServerSettings":
    from pubswap_server.settings import load_settings

    return load_settings(**options)


beside = with_settings(DATA)


@admin_commands.command("backup")
@beside
def backup_command(
    settings: "ServerSettings",
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The backup's folder.")],
    with_token: Annotated[
        bool, typer.Option("--with-token", help="Include the operator's token.")
    ] = False,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Continue without lost blobs.")
    ] = False,
) -> None:
    """Write a consistent backup of all rows and their blobs to DIR.

    The coordinator can keep serving. A second backup to the same DIR copies only what is new, and
    replaces the first one when it is complete. A backup can be restored to another kind of
    database and store. It contains members' names and adapters, and tokens only as SHA-256 (except
    with --with-token): protect it like the coordinator.
    """
    from pubswap_protocol.command_line.progress_bar import progress_bar
    from pubswap_server.admin.backup import backup

    with progress_bar() as bar:
        manifest = backup(settings, folder, bar, with_token=with_token, allow_missing=allow_missing)
    typer.echo(f"{folder} holds {manifest.text()}.")
    if manifest.missing:
        typer.echo(f"{len(manifest.missing)} blobs are lost and not in it; see its manifest.json.")
    typer.echo(f"Next: pubswap admin restore {quote(str(folder))} --data-dir NEW")


@admin_commands.command("restore")
@beside
def restore_command(
    settings: "ServerSettings",
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The backup.")],
) -> None:
    """Restore the backup in DIR to an empty database and store.

    It first checks every byte of the backup, and refuses a target that is not empty. The
    coordinator then continues from the time of the backup. Members keep their tokens; unfinished
    uploads start again.
    """
    from pubswap_protocol.command_line.progress_bar import progress_bar
    from pubswap_server.admin.restore import restore

    with progress_bar() as bar:
        manifest = restore(settings, folder, bar)
    typer.echo(f"Restored {manifest.text()}.")
    if manifest.missing:
        typer.echo(f"{len(manifest.missing)} blobs were lost before the backup was made.")
    if not manifest.operator_token and settings.operator_token is None:
        typer.echo(f"The backup has no operator token; the one in {settings.token_file} applies.")
    typer.echo("Next: pubswap admin verify, then pubswap serve, with the same settings.")


@admin_commands.command("verify")
@beside
def verify_command(settings: "ServerSettings", as_json: AsJson = False) -> None:
    """Check every byte of every blob, and recompute every round's adapter.

    Every finished round whose updates are kept (PUBSWAP_KEEP_ROUNDS) is averaged again and must
    give the same bits. The coordinator can keep serving. Unreferenced blobs are counted but are no
    error: the coordinator removes them in time.

    Exit status: 0 if nothing is wrong, 1 otherwise.
    """
    from pubswap_protocol.command_line.progress_bar import progress_bar
    from pubswap_server.admin.verify import verify

    with progress_bar() as bar:
        report = verify(settings, bar)
    typer.echo(escaped(report.model_dump_json(indent=2)) if as_json else report.text())
    raise typer.Exit(0 if report.healthy else 1)


@admin_commands.command("adopt")
@beside
def adopt_command(
    settings: "ServerSettings",
    discard: Annotated[
        bool,
        typer.Option("--discard", help="Remove the blobs that this database never named at once."),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask; needed where there is no terminal.")
    ] = False,
) -> None:
    """Make the blob store this database's own, whatever deployment it was of.

    A database and its blob store have the same id, and the coordinator does not start on two that
    differ: it would take the other deployment's blobs for leftovers. Stop the coordinator first.
    The command brings the database's schema up to date. It says how many blobs are in the store,
    missing there, and unknown to the database, and asks.

    Exit status: 1 if you decline.
    """
    from pubswap_protocol.errors import InvalidSettings
    from pubswap_server.admin.adopt import adopt, plan
    from pubswap_server.admin.opened import opened
    from pubswap_server.database.engine import sqlite_locked

    with sqlite_locked(settings.sqlalchemy_url), opened(settings) as deployment:
        adoption = plan(settings, deployment, discard=discard)
        typer.echo("\n".join(adoption.lines()))
        if not yes:
            if not sys.stdin.isatty():
                raise InvalidSettings("Nothing was changed; add --yes to go ahead.")
            typer.confirm("Continue?", abort=True)
        adopt(deployment, adoption)
    typer.echo("Next: pubswap serve, with the same settings.")
