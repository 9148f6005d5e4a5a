"""Which stores the settings ask for."""

from dataclasses import dataclass

from pubswap_protocol.errors import InvalidSettings
from pubswap_server.settings import ServerSettings
from pubswap_server.storage.incoming import Incoming
from pubswap_server.storage.local import LocalBlobs, LocalUploads
from pubswap_server.storage.store import BlobStore, UploadStore


@dataclass(frozen=True)
class Storage:
    """The places of a coordinator's bytes."""

    incoming: Incoming
    blobs: BlobStore
    uploads: UploadStore


def make_storage(settings: ServerSettings) -> Storage:
    """Folders in data_dir, or the bucket that `blob_url` names; raises InvalidSettings."""
    incoming = Incoming(settings.data_dir / "incoming")
    if settings.blob_url is None:
        return Storage(
            incoming,
            LocalBlobs(settings.data_dir / "blobs", incoming),
            LocalUploads(settings.data_dir / "uploads"),
        )
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    from pubswap_server.storage.bucket import BucketBlobs, BucketUploads

    try:
        # Credentials, region and endpoint come from the environment, as AWS_… names them.
        store = from_url(settings.blob_url)
    except (BaseError, ValueError) as error:
        raise InvalidSettings(f"blob_url {settings.blob_url!r} cannot be used: {error}") from None
    cache = settings.data_dir / "cache"
    return Storage(
        incoming,
        BucketBlobs(store, cache, settings.cache_bytes, incoming),
        BucketUploads(store, incoming),
    )
