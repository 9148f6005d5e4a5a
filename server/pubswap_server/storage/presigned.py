"""Presigned URLs: a member itself writes a part of its upload to the bucket, or reads a blob.

Each part is its own object under `uploads/`, like bytes sent through the coordinator, because
obstore signs a method and a key, not the query of S3's own multipart uploads. Nor does it sign a
body's length or digest, so the member can change a part until the URL expires. Therefore parts are
never used in place: the bytes are counted, copied and hashed, and the hashed copy is stored, see
`BucketUploads.assembled`.
"""

from datetime import timedelta
from functools import lru_cache
from typing import Literal

import obstore
from obstore.store import ObjectStore, S3Store

from pubswap_server.storage.s3 import blob_key, part_key, reachable

URL_SECONDS = 900.0  # a request must begin within this time
PART_BYTES = 16 << 20  # sent again if interrupted; each costs the coordinator some requests
MAX_PARTS = 64  # signed at a time; the member asks again for more


class Presigned:
    """Signs URLs of one bucket for the endpoint at which members reach it."""

    def __init__(self, store: ObjectStore, members: S3Store) -> None:
        self._members = members
        self.url = self.sign("GET", ["-"])[0].partition("?")[0].removesuffix("/-")
        """The prefix of all URLs, without its slash."""

        @lru_cache(maxsize=4096)
        def size(digest: str) -> int:
            with reachable():
                return obstore.head(store, blob_key(digest))["size"]

        self._size = size

    def parts(self, upload: str, offset: int, size: int) -> list[tuple[int, int, str]]:
        """First byte, size and URL of an upload's next parts, from its offset on."""
        firsts = range(offset, size, PART_BYTES)[:MAX_PARTS]
        if not firsts:
            return []
        urls = self.sign("PUT", [part_key(upload, first) for first in firsts])
        return [
            (first, min(PART_BYTES, size - first), url)
            for first, url in zip(firsts, urls, strict=True)
        ]

    def blob(self, digest: str) -> tuple[str, int]:
        """A URL to read a blob or a range of it, and the blob's size.

        Raises FileNotFoundError or Unavailable.
        """
        return self.sign("GET", [blob_key(digest)])[0], self._size(digest)

    def sign(self, method: Literal["GET", "PUT"], keys: list[str]) -> list[str]:
        with reachable():  # credentials may have to be fetched
            return list(obstore.sign(self._members, method, keys, timedelta(seconds=URL_SECONDS)))
