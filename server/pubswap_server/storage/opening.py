"""Open the stores that the settings name."""

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pubswap_protocol.errors import InvalidSettings
from pubswap_server.settings import ServerSettings
from pubswap_server.storage.local import LocalBlobs, LocalUploads
from pubswap_server.storage.spool import Spool
from pubswap_server.storage.store import BlobStore, UploadStore

if TYPE_CHECKING:
    from obstore.store import RetryConfig

# A bucket that is away is told to the client, who waits better than a thread here does.
_RETRIES: "RetryConfig" = {"max_retries": 3, "retry_timeout": timedelta(seconds=10)}


@dataclass(frozen=True)
class Storage:
    """The places of a coordinator's bytes."""

    incoming: Spool
    blobs: BlobStore
    uploads: UploadStore


def make_storage(settings: ServerSettings) -> Storage:
    """Folders in data_dir, or the bucket that `blob_url` names; raises InvalidSettings."""
    incoming = Spool(settings.data_dir / "incoming")
    if settings.blob_url is None:
        return Storage(
            incoming,
            LocalBlobs(settings.data_dir / "blobs", incoming),
            LocalUploads(settings.data_dir / "uploads"),
        )
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    from pubswap_server.storage.s3 import BucketBlobs, BucketUploads

    try:
        # Credentials, region and endpoint come from the environment, as AWS_… names them.
        store = from_url(settings.blob_url, retry_config=_RETRIES)
    except (BaseError, ValueError) as error:
        raise InvalidSettings(f"blob_url {settings.blob_url!r} cannot be used: {error}") from None
    cache = settings.data_dir / "cache"
    return Storage(
        incoming,
        BucketBlobs(store, cache, settings.cache_bytes, incoming),
        BucketUploads(store, incoming),
    )
