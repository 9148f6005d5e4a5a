"""A member's own settings: where its data, its model and its device are.

From the environment (PUBSWAP_CLIENT_...), then `client.toml`, then the command line, the last
winning. What is trained is the run's to say; where and on what is the organisation's.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from pubswap_protocol.errors import InvalidSettings

Positive = Annotated[int, Field(gt=0)]


class ClientSettings(BaseSettings):
    """`client.toml`, validated. Relative paths are relative to the file."""

    model_config = SettingsConfigDict(env_prefix="PUBSWAP_CLIENT_", extra="forbid", frozen=True)

    state: Path = Field(default=Path("pubswap-state"), description="Token and local progress.")
    data: Path | None = Field(default=None, description="The private JSONL; it is only ever read.")
    model: str | None = Field(
        default=None, description="A local folder or a hub id; by default the run's own source."
    )
    revision: str | None = Field(default=None, description="The hub revision.")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Positive | None = Field(default=None, description="CPU threads; by default all.")
    micro_batch_tokens: Positive | None = Field(
        default=None,
        description="Tokens computed at a time in the update; by default what memory is estimated "
        "to hold. It halves by itself when memory runs out.",
    )
    gradient_checkpointing: bool = Field(
        default=False, description="Compute layers twice and keep much less of them in memory."
    )
    liger: bool = Field(
        default=False, description="Use liger-kernel's fused layers (CUDA; pip install it)."
    )
    rollout_rows: Positive = Field(default=512, description="Sequences sampled at a time.")
    verifier_workers: Positive = 1
    verifier_seconds: float = Field(default=5.0, gt=0)


def load_settings(config: Path | None, **overrides: Any) -> ClientSettings:
    """Settings from a file and the command line; raises InvalidSettings naming the key."""
    values: dict[str, Any] = {}
    if config is not None:
        values = read_toml(config)
        for key in ("state", "data"):
            if key in values:
                values[key] = config.parent / values[key]
    values |= {key: value for key, value in overrides.items() if value is not None}
    try:
        return ClientSettings(**values)
    except ValidationError as error:
        raise InvalidSettings(f"{config or 'settings'}: {first_error(error)}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file's content; raises InvalidSettings if it cannot be read."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise InvalidSettings(f"{path} cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettings(f"{path} is not TOML: {error}") from None


def first_error(error: ValidationError) -> str:
    """The first thing that is wrong, with its key."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    return f"{key}: {first['msg']}" if key else str(first["msg"])
