"""The commands `pubswap serve` and `pubswap admin`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from pubswap_server.admin.commands import admin_commands, with_settings
from pubswap_server.options import SERVING

if TYPE_CHECKING:
    from pubswap_server.settings import ServerSettings


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)
    app.add_typer(admin_commands, name="admin")


@with_settings(SERVING)
def serve(
    settings: "ServerSettings",
    print_settings: Annotated[
        bool, typer.Option("--print-settings", help="Print the current settings and exit.")
    ] = False,
) -> None:
    """Run the coordinator.

    Without options, it is one process for this machine only, with SQLite and a folder. It upgrades
    the database schema when it starts. You can stop or kill it at any time; when started again, it
    continues where it was.

    All limits and times can be set in the environment; `pubswap settings server` lists them. In
    production use a TLS proxy, a timer for `pubswap admin backup`, and a monitor of /readyz.
    """
    if print_settings:
        typer.echo("\n".join(_in_force(settings)))
    else:
        _serve(settings)


def _in_force(settings: "ServerSettings") -> Iterator[str]:
    """The current settings as lines of an environment file, with secrets hidden."""
    from sqlalchemy import make_url

    for field in type(settings).model_fields:
        name, value = f"PUBSWAP_{field.upper()}", getattr(settings, field)
        if field == "database_url" and value is not None:
            value = make_url(value).render_as_string(hide_password=True)
        yield f"# {name} is not set" if value is None else f"{name}={value}"


def _serve(settings: "ServerSettings") -> None:
    from pubswap_server.monitoring.logs import configure_logs
    from pubswap_server.server import http_options, listen, prepared, run_server
    from pubswap_server.settings import unknown_variables

    http_options(settings)  # report errors in them before anything starts
    configure_logs(settings.log_format, settings.log_level)
    for name in unknown_variables():
        typer.echo(
            f"warning: {name} is set, but is not a setting of the coordinator; `pubswap "
            "settings server` lists them all",
            err=True,
        )
    # Before opening the port, so that the token exists once the port answers.
    with prepared(settings) as bucket:
        listening = listen(settings.host, settings.port)
        scheme = "https" if settings.tls_cert else "http"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{scheme}://{host}:{listening.getsockname()[1]}"
        typer.echo(f"PubSwap coordinator on {address}, data in {settings.data_dir}", err=True)
        way = "through the coordinator"
        if bucket is not None:
            way = f"straight to the bucket, {bucket}, if a member's policy names it, else {way}"
        typer.echo(f"adapters go {way}", err=True)
        if settings.operator_token is None:
            typer.echo(f"operator token in {settings.token_file}", err=True)
        run_server(settings, listening)
