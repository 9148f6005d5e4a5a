"""URLs under which a member itself writes a part of its upload to the bucket, or reads a blob.

A part is an object of its own under `uploads/`, where what comes through the coordinator is kept
too: obstore signs a method and a key, not the query of S3's own multipart uploads. Nor does it sign
a body's length or digest, so that a part is whatever its member has put there, until the URL's last
second. Nothing is used from there: the bytes are counted, copied and hashed, and what was hashed is
stored, see `BucketUploads.assembled`.
"""

from datetime import timedelta
from functools import lru_cache
from typing import Literal

import obstore
from obstore.store import ObjectStore, S3Store

from pubswap_server.storage.s3 import blob_key, part_key, reachable

URL_SECONDS = 900.0  # a request has to begin within them
PART_BYTES = 8 << 20  # sent again where it is cut; each costs the coordinator some requests
MOST_PARTS = 64  # signed at a time; the member asks again for more


class Presigned:
    """Signs for one bucket, which members reach under an address of their own."""

    def __init__(self, store: ObjectStore, members: S3Store) -> None:
        self._members = members
        self.url = self.sign("GET", ["-"])[0].partition("?")[0].removesuffix("/-")
        """What all URLs begin with, before a slash."""

        @lru_cache(maxsize=4096)
        def size(digest: str) -> int:
            with reachable():
                return obstore.head(store, blob_key(digest))["size"]

        self._size = size

    def parts(self, upload: str, offset: int, size: int) -> list[tuple[int, int, str]]:
        """First byte, bytes and URL of an upload's next parts, from its offset on."""
        firsts = range(offset, size, PART_BYTES)[:MOST_PARTS]
        if not firsts:
            return []
        urls = self.sign("PUT", [part_key(upload, first) for first in firsts])
        return [
            (first, min(PART_BYTES, size - first), url)
            for first, url in zip(firsts, urls, strict=True)
        ]

    def blob(self, digest: str) -> tuple[str, int]:
        """A URL to read a blob's bytes, or some of them, and how many there are.

        Raises FileNotFoundError or Unavailable.
        """
        return self.sign("GET", [blob_key(digest)])[0], self._size(digest)

    def sign(self, method: Literal["GET", "PUT"], keys: list[str]) -> list[str]:
        with reachable():  # credentials may have to be asked for
            return list(obstore.sign(self._members, method, keys, timedelta(seconds=URL_SECONDS)))
