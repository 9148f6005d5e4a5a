"""Storage for coordinators: a folder with SQLite, or PostgreSQL with a bucket."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from pydantic import SecretStr

from pubswap_server.settings import ServerSettings
from support.coordinator.coordinator import OPERATOR_TOKEN
from support.coordinator.postgres import Postgres, postgres
from support.coordinator.s3 import BUCKET, S3Server, serving_s3
from support.forked import pubswap

# For tests in tests/conformance that do not depend on the kind of database and store.
on_sqlite = pytest.mark.parametrize("place", ["sqlite and folder"], indirect=True, scope="session")


@dataclass
class StorageFactory:
    """Makes empty storage for new coordinators."""

    folder: Path
    database: Postgres
    s3: S3Server
    numbers: Iterator[int] = field(default_factory=count)

    def new(self, kind: str) -> ServerSettings:
        """Settings of a coordinator with empty storage; `kind` is folder or services."""
        number = next(self.numbers)
        settings = ServerSettings(
            data_dir=self.folder / f"place-{number}",
            operator_token=SecretStr(OPERATOR_TOKEN),
            tick_seconds=0.05,
            max_wait_seconds=5,
        )
        if kind == "folder":
            return settings
        url = self.database.new_database()
        with self.database.connect("postgres") as connection:
            # Times must not depend on the database's time zone.
            name = url.rsplit("/", 1)[-1]
            connection.execute(f"ALTER DATABASE \"{name}\" SET timezone = 'Asia/Tokyo'".encode())
        return settings.model_copy(
            update={
                "database_url": url,
                "blob_url": f"s3://{BUCKET}/place-{number}",
            }
        )


@contextmanager
def storage_factory(folder: Path) -> Iterator[StorageFactory]:
    """Run PostgreSQL and an S3 server; clients of the latter need its `environment` in theirs."""
    with postgres() as database, serving_s3(folder / "s3") as s3:
        yield StorageFactory(folder, database, s3)


def admin(settings: ServerSettings, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `pubswap admin` for a coordinator with these settings."""
    return pubswap("admin", *arguments, env=environment_of(settings))


def environment_of(settings: ServerSettings) -> dict[str, str]:
    """An environment with these settings and no others of PubSwap."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PUBSWAP_")}
    env["PUBSWAP_DATA_DIR"] = str(settings.data_dir)
    for name in ("database_url", "blob_url"):
        if getattr(settings, name) is not None:
            env[f"PUBSWAP_{name.upper()}"] = getattr(settings, name)
    if settings.operator_token is not None:
        env["PUBSWAP_OPERATOR_TOKEN"] = settings.operator_token.get_secret_value()
    return env
