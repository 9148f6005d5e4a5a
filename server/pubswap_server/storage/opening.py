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

    from pubswap_server.storage.presigned import Presigned

# Give up on an unreachable bucket soon, because the client can wait better than a thread here.
_RETRIES: "RetryConfig" = {"max_retries": 3, "retry_timeout": timedelta(seconds=10)}
CACHE_BYTES = 32 << 30


@dataclass(frozen=True)
class Storage:
    incoming: Spool
    blobs: BlobStore
    uploads: UploadStore
    presigned: "Presigned | None" = None  # if members reach the bucket themselves


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
    from obstore.store import S3Store, from_url

    from pubswap_server.storage.presigned import Presigned
    from pubswap_server.storage.s3 import BucketBlobs, BucketUploads

    url, endpoint, presigned = settings.blob_url, settings.bucket_endpoint, None
    try:
        # Credentials, region and endpoint come from the environment variables AWS_….
        store = from_url(url, retry_config=_RETRIES)
        if endpoint is not None:
            # The signature covers the host, so sign for the members' endpoint: it may differ.
            presigned = Presigned(store, S3Store.from_url(url, endpoint=endpoint.rstrip("/")))
    except (BaseError, ValueError) as error:
        raise InvalidSettings(f"blob_url {url!r} cannot be used: {error}") from None
    blobs = BucketBlobs(store, settings.data_dir / "cache", CACHE_BYTES, incoming)
    return Storage(
        incoming, blobs, BucketUploads(store, incoming, presigned is not None), presigned
    )
