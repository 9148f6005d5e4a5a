"""`pubswap serve`."""

import errno
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pubswap_protocol.errors import InvalidSettings

if TYPE_CHECKING:
    from pubswap_server.settings import ServerSettings


def register(app: typer.Typer) -> None:
    """Add `serve`."""
    app.command("serve")(serve)


def serve(
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where blobs, the token and SQLite are kept.")
    ] = None,
    database_url: Annotated[
        str | None, typer.Option(help="Such as postgresql+psycopg://user:password@host/db.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that share the port.")] = None,
    log_format: Annotated[str | None, typer.Option(help="console or json.")] = None,
) -> None:
    """Run the coordinator. Everything can also be set as PUBSWAP_... in the environment."""
    given = {
        "host": host,
        "port": port,
        "data_dir": data_dir,
        "database_url": database_url,
        "workers": workers,
        "log_format": log_format,
    }
    _serve({key: value for key, value in given.items() if value is not None})


def _serve(given: dict[str, Any]) -> None:
    from pydantic import ValidationError

    from pubswap_server.logs import configure_logs
    from pubswap_server.settings import ServerSettings, operator_token

    try:
        settings = ServerSettings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidSettings(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    listening = _listen(settings.host, settings.port)
    configure_logs(settings)
    operator_token(settings)
    address = f"http://{settings.host}:{listening.getsockname()[1]}"
    typer.echo(f"PubSwap coordinator on {address}, data in {settings.data_dir}", err=True)
    if settings.operator_token is None:
        typer.echo(f"operator token in {settings.token_file}", err=True)
    if settings.workers == 1:
        run_server(settings, listening)
    else:
        from pubswap_server.supervisor import Supervisor

        Supervisor(settings, listening).run()


def run_server(settings: "ServerSettings", listening: socket.socket) -> None:
    """Serve in this process until SIGTERM or SIGINT; requests under way are finished."""
    import uvicorn

    from pubswap_server.app import create_app

    app = create_app(settings)

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # Long polls would otherwise keep a stopping server for up to half a minute.
            app.state.services.bells.close()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app, log_config=None, access_log=False, timeout_graceful_shutdown=10, lifespan="on"
    )
    Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """The socket to serve on; raises InvalidSettings if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise InvalidSettings(
                f"Port {port} on {host} is in use; stop what listens there or choose another "
                "with --port."
            ) from None
        raise InvalidSettings(f"Cannot listen on {host}:{port}: {error.strerror}") from None
    return listening
