"""The coordinator's settings, from the environment (PUBSWAP_...) and the command line."""

import contextlib
import os
import secrets
import socket
import tempfile
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class ServerSettings(BaseSettings):
    """Where the coordinator listens and keeps things, and what it accepts at most."""

    model_config = SettingsConfigDict(env_prefix="PUBSWAP_", extra="ignore", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8470, ge=0, le=65535)
    data_dir: Path = Path("pubswap-data")
    database_url: str | None = Field(default=None, description="By default SQLite in data_dir.")
    operator_token: SecretStr | None = Field(
        default=None, description="By default made once and kept in data_dir/operator-token."
    )
    max_adapter_bytes: int = Field(default=256 << 20, gt=0)
    blob_url: str | None = Field(
        default=None,
        description="Such as s3://bucket/prefix, with AWS_... in the environment; by default a "
        "folder in data_dir.",
    )
    cache_bytes: int = Field(default=32 << 30, gt=0, description="Of blobs fetched from blob_url.")
    chunk_bytes: int = Field(default=4 << 20, gt=0, description="The most bytes of one chunk.")
    max_uploads_per_member: int = Field(default=4, gt=0)
    member_quota_bytes: int = Field(
        default=64 << 30, gt=0, description="What a member may have stored in its run."
    )
    spare_bytes: int = Field(default=256 << 20, ge=0, description="Of the disk, never promised.")
    upload_expire_seconds: float = Field(default=24 * 3600, gt=0)
    orphan_seconds: float = Field(
        default=3600, gt=0, description="A blob that nothing names is removed after this time."
    )
    max_json_bytes: int = Field(default=1 << 20, gt=0)
    max_set_bytes: int = Field(default=256 << 20, gt=0)
    max_wait_seconds: float = Field(default=30.0, gt=0)
    verifier_workers: int = Field(default=1, gt=0)
    verifier_seconds: float = Field(default=5.0, gt=0)
    tick_seconds: float = Field(default=1.0, gt=0)
    workers: int = Field(default=1, gt=0, le=256, description="Processes that share the port.")
    replica: str | None = Field(
        default=None,
        max_length=240,
        description="This replica's name, which no other has while it runs; by default its host "
        "and port.",
    )
    lease_seconds: float = Field(
        default=15.0, gt=0, description="A replica that shows no life for so long is replaced."
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "console"

    @property
    def sqlalchemy_url(self) -> str:
        """The database's URL."""
        return self.database_url or f"sqlite:///{self.data_dir / 'pubswap.sqlite'}"

    @property
    def replica_name(self) -> str:
        """What other replicas know this one by."""
        return self.replica or f"{socket.gethostname()}:{self.port}"

    @property
    def token_file(self) -> Path:
        """Where a generated operator token is kept."""
        return self.data_dir / "operator-token"


def operator_token(settings: ServerSettings) -> str:
    """The operator's token; made on the first start, in a file for its owner only."""
    if settings.operator_token is not None:
        return settings.operator_token.get_secret_value()
    path = settings.token_file
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        # Of processes that start together the first one's token is everybody's.
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
        Path(temporary).unlink()
    return path.read_text(encoding="utf-8").strip()
