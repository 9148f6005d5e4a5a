"""Shared by the operator's commands: the coordinator's address, the token, and a client."""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec
from urllib.parse import urlsplit

import typer

from pubswap_client.coordinator.retry import ONCE
from pubswap_client.coordinator.tls import from_environment
from pubswap_protocol.command_line.sharing import sharing
from pubswap_protocol.errors import InvalidSettings

if TYPE_CHECKING:
    from pubswap_client.coordinator.client import CoordinatorClient

P = ParamSpec("P")

DEFAULT_URL = "http://127.0.0.1:8470"

Url = Annotated[
    str,
    typer.Option("--coordinator", envvar="PUBSWAP_COORDINATOR", help="The coordinator's address."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        envvar="PUBSWAP_OPERATOR_TOKEN_FILE",
        help="The file with the operator token, by default operator-token in the coordinator's "
        "PUBSWAP_DATA_DIR; PUBSWAP_OPERATOR_TOKEN takes precedence.",
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        envvar="PUBSWAP_CA_FILE", help="The CA of the coordinator's certificate (PEM), if private."
    ),
]


def find_token_file(given: Path | None) -> Path:
    """The file with the operator's token, whether it exists or not: by default the coordinator's.

    The operator's signing key is beside it.
    """
    return given or Path(os.environ.get("PUBSWAP_DATA_DIR", "pubswap-data")) / "operator-token"


def operator_token(file: Path) -> str:
    """The operator's token; raises InvalidSettings, saying where it was looked for."""
    if token := os.environ.get("PUBSWAP_OPERATOR_TOKEN"):
        return token
    try:
        if token := file.read_text(encoding="utf-8-sig").strip():
            return token
        reason: object = "it is empty"
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
    raise InvalidSettings(
        f"The operator token is not in {file} ({reason}). `pubswap serve` writes it to its "
        "data folder; give that file with --token-file, or the folder as PUBSWAP_DATA_DIR."
    )


def connect(
    url: Url = DEFAULT_URL, token_file: TokenFile = None, ca_file: CaFile = None
) -> "CoordinatorClient":
    """A client with the operator's token that fails at once rather than retrying."""
    return client_with(url, None, token_file, ca_file)


def client_with(
    url: str, token: str | None, token_file: Path | None, ca_file: Path | None
) -> "CoordinatorClient":
    """Like `connect`, optionally with a known token. Other TLS files come from the environment."""
    from pubswap_client.coordinator.client import CoordinatorClient

    tls = from_environment(ca_file)
    return CoordinatorClient(
        url, token or operator_token(find_token_file(token_file)), ONCE, tls=tls
    )


def print_elsewhere(url: str) -> None:
    """Say what replaces a loopback address that was just printed; nothing for any other one."""
    from pubswap_client.coordinator.route import is_loopback

    if is_loopback(urlsplit(url).hostname or ""):
        typer.echo(f"On another machine, replace {url} by the coordinator's address there.")


def connected(command: Callable[Concatenate["CoordinatorClient", P], None]) -> Callable[..., None]:
    """Give a command the options of `connect`, and call it with the resulting client."""

    @wraps(command)
    def closing(api: "CoordinatorClient", **options: Any) -> None:
        with api:
            command(api, **options)  # type: ignore[call-arg]

    return sharing(connect)(closing)
