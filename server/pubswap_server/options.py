"""The coordinator's settings that are also options of its commands.

They are apart from the other settings because help needs no package of the server's extra.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

Panels = dict[str, tuple[str, ...]]

DATA: Panels = {"Where the coordinator keeps its data": ("data_dir", "database_url", "blob_url")}
SERVING: Panels = {
    "Where it listens": ("host", "port", "tls_cert", "tls_key", "workers"),
    **DATA,
    "Logs": ("log_level", "log_format"),
}


class ServerOptions(BaseModel):
    """Addresses, storage and logs."""

    host: str = Field(
        default="127.0.0.1", min_length=1, description="Address to listen on; 0.0.0.0 for all."
    )
    port: int = Field(
        default=8470, ge=0, le=65535, description="Port to listen on; 0: any free port."
    )
    data_dir: Path = Field(
        default=Path("pubswap-data"),
        description="Folder for blobs, the operator token and SQLite, or for the cache of "
        "blob_url.",
    )
    database_url: str | None = Field(
        default=None,
        description="Database, such as postgresql+psycopg://user:password@host/database; by "
        "default SQLite in data_dir.",
    )
    blob_url: str | None = Field(
        default=None,
        description="Blob store, such as s3://bucket/prefix, with AWS_... in the environment; by "
        "default a folder in data_dir.",
    )
    workers: int = Field(default=1, gt=0, le=256, description="Processes that share the port.")
    tls_cert: Path | None = Field(
        default=None, description="Certificate chain, as PEM; without it, plain HTTP."
    )
    tls_key: Path | None = Field(default=None, description="Key of the certificate, as PEM.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level of log lines: debug, info, warning or error."
    )
    log_format: Literal["json", "console"] = Field(
        default="console", description="json for programs, console for people."
    )
