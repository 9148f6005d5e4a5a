"""The coordinator's settings as they are."""

from typing import Any

from pydantic import SecretStr
from sqlalchemy import make_url

from pubswap_server.settings import ServerSettings


def settings_in_force(settings: ServerSettings) -> str:
    """A line for each setting as it is, in the form of an environment file; secrets are hidden."""
    prefix = ServerSettings.model_config["env_prefix"]
    values = {
        f"{prefix}{name}".upper(): plain(getattr(settings, name))
        for name in ServerSettings.model_fields
    }
    return "\n".join(
        f"# {name} is not set" if value is None else f"{name}={value}"
        for name, value in values.items()
    )


def plain(value: Any) -> Any:
    """A setting's value for printing: no secret, and no type that JSON does not know."""
    if isinstance(value, SecretStr):
        return "**********"
    if isinstance(value, str) and "://" in value:
        return make_url(value).render_as_string(hide_password=True)
    return value if isinstance(value, bool | int | float | None) else str(value)
