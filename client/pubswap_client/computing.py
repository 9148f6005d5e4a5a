"""Options shared by the commands that compute: this machine's settings."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pubswap_client.options import ClientOptions
from pubswap_protocol.command_line.sharing import Command, option_of, sharing

if TYPE_CHECKING:
    from pubswap_client.settings import ClientSettings

Config = Annotated[Path | None, typer.Option(help="A client.toml with these settings.")]


def computing(*own: str) -> Callable[[Command], Command]:
    """Give a command the settings as its first argument, and its `own` ones and others as options.

    Options override the config file. Raises InvalidSettings.
    """
    names = (*own, "state", "model", "device", "dtype", "threads")
    return sharing(_settings, *(option_of(ClientOptions, name) for name in names))


def _settings(config: Config = None, **options: Any) -> "ClientSettings":
    from pubswap_client.settings import load_settings

    return load_settings(config, **options)
