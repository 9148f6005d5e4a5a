"""The list of the coordinator's settings, made from their definition."""

import textwrap
from typing import Any

from pydantic import SecretStr
from sqlalchemy import make_url

from pubswap_server.settings import ServerSettings

_WIDTH = 96


def settings_list() -> list[dict[str, Any]]:
    """Name, environment name, default and purpose of each setting, in order."""
    prefix = ServerSettings.model_config["env_prefix"]
    return [
        {
            "name": name,
            "environment": f"{prefix}{name}".upper(),
            "default": None if field.default is None else plain(field.default),
            "description": field.description,
        }
        for name, field in ServerSettings.model_fields.items()
    ]


def settings_text() -> str:
    lines = ["Every setting can be given in the environment; the common ones are options, too.", ""]
    for entry in settings_list():
        default = "not set" if entry["default"] is None else entry["default"]
        lines.append(f"{entry['environment']} (default: {default})")
        lines += textwrap.wrap(
            entry["description"], _WIDTH, initial_indent="    ", subsequent_indent="    "
        )
    return "\n".join(lines)


def settings_in_force(settings: ServerSettings) -> str:
    """A line for each setting as it is, in the form of an environment file; secrets are hidden."""
    values = [
        (entry["environment"], plain(getattr(settings, entry["name"]))) for entry in settings_list()
    ]
    return "\n".join(
        f"# {name} is not set" if value is None else f"{name}={value}" for name, value in values
    )


def plain(value: Any) -> Any:
    """A setting's value for printing: no secret, and no type that JSON does not know."""
    if isinstance(value, SecretStr):
        return "**********"
    if isinstance(value, str) and "://" in value:
        return make_url(value).render_as_string(hide_password=True)
    return value if isinstance(value, bool | int | float | None) else str(value)
