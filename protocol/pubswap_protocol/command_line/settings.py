"""`pubswap settings run|client|server`: every setting, from the code that reads it."""

import json
import textwrap
from collections.abc import Iterator
from enum import StrEnum
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from pubswap_protocol.command_line.schema_text import default_text, plain, tables, unit
from pubswap_protocol.errors import InvalidSettings

_WIDTH = 96


class SettingsOwner(StrEnum):
    """The owner of settings: a run file, an organisation's `client.toml`, or the coordinator."""

    RUN = "run"
    CLIENT = "client"
    SERVER = "server"


def settings(
    owner: Annotated[
        SettingsOwner, typer.Argument(help="Of a run file, a client.toml, or the server.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List every setting with its type, bounds, default and meaning.

    A run's settings are the keys of its TOML file. A client's are the keys of client.toml, or
    PUBSWAP_CLIENT_... in the environment. The server's come from the environment.
    """
    listed = list(entries(settings_model(owner)))
    typer.echo(json.dumps(listed, indent=2, ensure_ascii=False) if as_json else _text(listed))


def settings_model(owner: SettingsOwner) -> type[BaseModel]:
    for entry in entry_points(group="pubswap.settings", name=owner.value):
        settings_class: type[BaseModel] = entry.load()
        return settings_class
    raise InvalidSettings(f"The package with the {owner} settings is not installed.")


def entries(model: type[BaseModel]) -> Iterator[dict[str, Any]]:
    """Name, type, default, unit and purpose of each setting, and its environment variable if any.

    The settings of nested tables follow, with dotted names.
    """
    prefix = str(model.model_config.get("env_prefix") or "")
    for table, _, fields in tables(model):
        for name, field in fields.items():
            key = f"{table}.{name}".strip(".")
            environment = {"environment": f"{prefix}{key}".upper()} if prefix else {}
            yield {
                "name": key,
                **(environment if "." not in key else {}),
                "type": field["type_text"],
                "default": default_text(field) or None,
                "unit": unit(name) or None,
                "description": plain(field.get("description", "")),
            }


def _text(listed: list[dict[str, Any]]) -> str:
    lines = []
    for entry in listed:
        default = "not set" if entry["default"] is None else entry["default"]
        measured = f" {entry['unit']}" * (entry["unit"] is not None and default != "not set")
        kind = entry["type"].replace("`", "")
        lines.append(
            f"{entry.get('environment', entry['name'])} ({kind}; default: {default}{measured})"
        )
        lines += textwrap.wrap(
            entry["description"], _WIDTH, initial_indent="    ", subsequent_indent="    "
        )
    return "\n".join(lines)
