"""The coordinator's settings, from the environment (PUBSWAP_...) and the command line."""

import os
import re
import secrets
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from sqlalchemy import URL, make_url

from pubswap_protocol.bounds import (
    MAX_COUNT,
    MAX_FACTOR,
    MAX_NUMBER,
    VERIFIER_SECONDS,
    CpuSeconds,
    TimeSpan,
)
from pubswap_protocol.command_line.removed import removal
from pubswap_protocol.errors import InvalidSettings, first_fault
from pubswap_protocol.files import create_durably, make_private
from pubswap_server.options import ServerOptions

_DATABASES = ("postgresql+psycopg://", "sqlite:///")
_OF_CLIENTS = re.compile(r"PUBSWAP_(CLIENT_.*|CA_FILE|COORDINATOR|OPERATOR_TOKEN_FILE)")


class ServerSettings(ServerOptions, BaseSettings):
    """The coordinator's addresses, storage and limits."""

    model_config = SettingsConfigDict(env_prefix="PUBSWAP_", extra="ignore", frozen=True)

    operator_token: SecretStr | None = Field(
        default=None,
        description="The operator's token; by default generated once and stored in "
        "data_dir/operator-token.",
    )
    bucket_endpoint: str | None = Field(
        default=None,
        description="Endpoint of blob_url's bucket as members reach it, such as "
        "https://s3.eu-central-1.amazonaws.com, for adapters to go straight to the bucket. By "
        "default they go through the coordinator.",
    )
    keep_rounds: int = Field(
        default=2,
        ge=0,
        le=MAX_NUMBER,
        description="Number of a run's last rounds whose updates and responses are kept; 0: all. "
        "Global adapters are kept forever.",
    )
    spare_bytes: int = Field(
        default=256 << 20,
        ge=0,
        le=MAX_COUNT,
        description="Disk space never given to uploads; with less left, /readyz answers 503.",
    )
    max_wait_seconds: TimeSpan = Field(default=30.0, description="Longest wait of a long poll.")
    verifier_seconds: CpuSeconds = Field(
        default=VERIFIER_SECONDS,
        description="CPU time for verifying a response; a response that needs more is wrong. "
        f"Members allow {VERIFIER_SECONDS:g} s.",
    )
    tick_seconds: TimeSpan = Field(
        default=1.0,
        description="Interval between checks of deadlines; up to 10 s in a run without changes.",
    )
    lease_seconds: TimeSpan = Field(
        default=15.0, description="Silence after which a replica is replaced."
    )
    member_requests_per_second: float = Field(
        default=20,
        ge=0.001,
        le=MAX_FACTOR,
        description="Average request rate of one member; bursts of twice as many are allowed. "
        "Stored chunks do not count.",
    )
    trusted_proxies: str = Field(
        default="127.0.0.1,::1",
        description="Addresses, separated by commas, whose X-Forwarded-For is trusted.",
    )
    notify_url: SecretStr | None = Field(
        default=None,
        description="Webhook for a small JSON document when a run waits, fails or finishes: https, "
        "or http on this machine.",
    )

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if self.bucket_endpoint and not (self.blob_url or "").startswith("s3://"):
            raise ValueError("bucket_endpoint needs a bucket: blob_url = s3://bucket/prefix")
        return self

    @field_validator("database_url")
    @classmethod
    def _is_supported(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(_DATABASES):
            kind = url.partition(":")[0]
            raise ValueError(
                f"it must begin with {' or '.join(_DATABASES)}, not with {kind}:; PubSwap works "
                "with PostgreSQL and SQLite"
            )
        if url is not None:
            try:
                file = make_url(url).database
            except ValueError:
                raise ValueError("its port is not a number") from None
            if url.startswith("sqlite") and file in (None, "", ":memory:"):
                raise ValueError("it names no file; write sqlite:///PATH")
        return url

    @field_validator("notify_url")
    @classmethod
    def _nobody_listens_in(cls, url: SecretStr | None) -> SecretStr | None:
        parts = urlsplit(url.get_secret_value() if url else "https://none")
        local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")
        if not parts.hostname or not (local or parts.scheme == "https"):
            raise ValueError("it must be an https address or http://127.0.0.1:PORT on this machine")
        return url

    @field_validator("bucket_endpoint")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        parts = urlsplit(url or "https://none")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ValueError("it must be an address, such as https://s3.eu-central-1.amazonaws.com")
        return url

    @property
    def sqlalchemy_url(self) -> str:
        return self.database_url or sqlite_url(self.data_dir / "pubswap.sqlite")

    @property
    def token_file(self) -> Path:
        return self.data_dir / "operator-token"


def sqlite_url(file: Path) -> str:
    """The URL of an SQLite file, whose name may contain characters of a URL, such as % and ?."""
    return URL.create("sqlite", database=str(file)).render_as_string()


def unknown_variables() -> list[str]:
    """Environment variables that look like settings of the coordinator but are not."""
    valid = {f"PUBSWAP_{name}".upper() for name in ServerSettings.model_fields}
    unknown = (name for name in os.environ if name.startswith("PUBSWAP_") and name not in valid)
    return sorted(name for name in unknown if not _OF_CLIENTS.fullmatch(name))


def load_settings(**values: object) -> ServerSettings:
    """Settings from `values` unless None, then from the environment, then the defaults.

    Raises InvalidSettings, naming the first setting that is wrong.
    """
    for name in unknown_variables():
        if gone := removal(name.removeprefix("PUBSWAP_").lower()):
            raise InvalidSettings(f"{name}: {gone}. Remove it from the environment.")
    try:
        return ServerSettings.model_validate(
            {name: value for name, value in values.items() if value is not None}
        )
    except ValidationError as error:
        raise InvalidSettings(first_fault(error)) from None


def operator_token(settings: ServerSettings) -> str:
    """The operator's token; generated on the first start, in a file for its owner only.

    Raises InvalidSettings for an empty one, which anybody could send.
    """
    configured, path = settings.operator_token, settings.token_file
    token = (_token_in(path) if configured is None else configured.get_secret_value()).strip()
    if not token:
        where = path if configured is None else "PUBSWAP_OPERATOR_TOKEN"
        raise InvalidSettings(f"The operator token in {where} is empty. Remove it to get one.")
    return token


def _token_in(path: Path) -> str:
    if not path.exists():
        make_private(path.parent)
        # If several processes start together, all use the first one's token.
        create_durably(path, secrets.token_urlsafe(32).encode() + b"\n")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidSettings(
            f"The operator token in {path} is not text. Remove that file to get another one."
        ) from None
