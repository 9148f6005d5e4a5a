"""Open a coordinator's database and blobs directly, even while it runs."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.files import make_private
from pubswap_server.database.engine import Database, newest_schema, schema_of
from pubswap_server.database.errors import unusable
from pubswap_server.settings import ServerSettings
from pubswap_server.storage.opening import Storage, make_storage
from pubswap_server.storage.store import BlobStore


@dataclass(frozen=True)
class Deployment:
    """A coordinator's database and store; fetched blobs are in `scratch`."""

    database: Database
    storage: Storage
    scratch: Path | None

    @property
    def blobs(self) -> BlobStore:
        return self.storage.blobs

    def forget_fetched(self) -> None:
        """Remove the local copies of fetched blobs."""
        if self.scratch is not None:
            for path in (self.scratch / "cache").iterdir():
                path.unlink()


@contextmanager
def opened(settings: ServerSettings, scratch: Path | None = None) -> Iterator[Deployment]:
    """Open a coordinator's database and store; with a bucket, fetch to `scratch` if given.

    This leaves the coordinator's own cache alone. Raises InvalidSettings or Unavailable.
    """
    fetched = scratch if settings.blob_url is not None else None
    storage = make_storage(
        settings.model_copy(update={"data_dir": fetched}) if fetched is not None else settings
    )
    database = Database(settings.sqlalchemy_url)
    try:
        yield Deployment(database, storage, fetched)
    except SQLAlchemyError as error:
        raise unusable(settings.sqlalchemy_url, error) from None
    finally:
        database.close()
        storage.incoming.close()


@contextmanager
def opened_in_use(settings: ServerSettings, parent: Path) -> Iterator[Deployment]:
    """Like `opened`, for a coordinator that has run; raises InvalidSettings if there is none.

    Blobs from a bucket are fetched to a temporary folder in `parent`.
    """
    url = make_url(settings.sqlalchemy_url)
    name = url.render_as_string(hide_password=True)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        raise InvalidSettings(
            f"There is no database {url.database}. Name the coordinator's folder with --data-dir, "
            "or its database with --database-url."
        )
    make_private(parent)
    with (
        tempfile.TemporaryDirectory(dir=parent) as scratch,
        opened(settings, Path(scratch)) as deployment,
    ):
        schema = schema_of(deployment.database.engine)
        if schema is None:
            raise InvalidSettings(f"No coordinator has used the database {name} yet.")
        if schema != newest_schema():
            raise InvalidSettings(
                f"The database {name} has schema {schema}, this software {newest_schema()}. "
                "Use the version that serves it. To upgrade an older database, start this "
                "version's `pubswap serve` once."
            )
        yield deployment
