"""`pubswap serve`, and beside it `pubswap admin`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pubswap_server.admin.commands import admin_commands

if TYPE_CHECKING:
    from pubswap_server.settings import ServerSettings


_LISTENING, _KEEPING, _LOGS = "Where it listens", "Where it keeps things", "Logs"


def register(app: typer.Typer) -> None:
    """Add `serve` and `admin`."""
    app.command("serve")(serve)
    app.add_typer(admin_commands, name="admin")


def serve(
    host: Annotated[
        str | None,
        typer.Option(
            envvar="PUBSWAP_HOST",
            help="The address to listen on; 0.0.0.0 for all. Default: 127.0.0.1.",
            rich_help_panel=_LISTENING,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            envvar="PUBSWAP_PORT",
            help="The port to listen on. Default: 8470.",
            rich_help_panel=_LISTENING,
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="PUBSWAP_DATA_DIR",
            help="Where blobs, the operator token and SQLite are kept. Default: pubswap-data.",
            rich_help_panel=_KEEPING,
        ),
    ] = None,
    database_url: Annotated[
        str | None,
        typer.Option(
            envvar="PUBSWAP_DATABASE_URL",
            help="PostgreSQL in place of SQLite: postgresql+psycopg://user:password@host/db.",
            rich_help_panel=_KEEPING,
        ),
    ] = None,
    blob_url: Annotated[
        str | None,
        typer.Option(
            envvar="PUBSWAP_BLOB_URL",
            help="A bucket in place of the folder: s3://bucket/prefix, with AWS_... set.",
            rich_help_panel=_KEEPING,
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            envvar="PUBSWAP_TLS_CERT",
            help="The certificate chain (PEM); without it, plain HTTP.",
            rich_help_panel=_LISTENING,
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(
            envvar="PUBSWAP_TLS_KEY",
            help="The certificate's key (PEM).",
            rich_help_panel=_LISTENING,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            envvar="PUBSWAP_WORKERS",
            help="Processes that share the port. Default: 1.",
            rich_help_panel=_LISTENING,
        ),
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(
            envvar="PUBSWAP_LOG_LEVEL",
            help="debug, info, warning or error. Default: info.",
            rich_help_panel=_LOGS,
        ),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(
            envvar="PUBSWAP_LOG_FORMAT",
            help="console for people, json for machines. Default: console.",
            rich_help_panel=_LOGS,
        ),
    ] = None,
    print_settings: Annotated[
        bool,
        typer.Option("--print-settings", help="Print all settings as they are, and do not serve."),
    ] = False,
) -> None:
    """Run the coordinator.

    Without options: SQLite and a folder, one process, on this machine only. The schema is brought
    up to date at the start. It may be stopped or killed at any time, and goes on where it was.

    All limits and times can be set in the environment: `pubswap admin settings` lists them. Put a
    TLS proxy in front of it, `pubswap admin backup` in a timer, and /readyz in a monitor.
    """
    from pubswap_server.settings import load_settings

    settings = load_settings(
        host=host,
        port=port,
        data_dir=data_dir,
        database_url=database_url,
        blob_url=blob_url,
        tls_cert=tls_cert,
        tls_key=tls_key,
        workers=workers,
        log_level=log_level,
        log_format=log_format,
    )
    if print_settings:
        from pubswap_server.admin.settings_list import settings_in_force

        typer.echo(settings_in_force(settings))
    else:
        _serve(settings)


def _serve(settings: "ServerSettings") -> None:
    from pubswap_server.monitoring.logs import configure_logs
    from pubswap_server.server import http_options
    from pubswap_server.starting import prepared

    http_options(settings)  # what is wrong with them is told before anything starts
    configure_logs(settings)
    # Before the port: who finds it open finds the token, too.
    with prepared(settings):
        _serve_prepared(settings)


def _serve_prepared(settings: "ServerSettings") -> None:
    from pubswap_server.server import Supervisor, listen, run_server

    listening = listen(settings.host, settings.port)
    scheme = "https" if settings.tls_cert else "http"
    address = f"{scheme}://{settings.host}:{listening.getsockname()[1]}"
    typer.echo(f"PubSwap coordinator on {address}, data in {settings.data_dir}", err=True)
    if settings.operator_token is None:
        typer.echo(f"operator token in {settings.token_file}", err=True)
    if settings.workers == 1:
        run_server(settings, listening)
    else:
        Supervisor(settings, listening).run()
