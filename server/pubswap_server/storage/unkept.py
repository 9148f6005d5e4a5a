"""A store whose blobs are forgotten: to compute something once more, and only to compare it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Self

from pubswap_protocol.digests import OURS
from pubswap_server.storage.incoming import Incoming
from pubswap_server.storage.store import BlobStore


class Unkept:
    """Reads a store's blobs and what was written here; that is gone when the block ends."""

    def __init__(self, blobs: BlobStore, incoming: Incoming) -> None:
        self._blobs = blobs
        self._incoming = incoming
        self._made: dict[str, Path] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for path in self._made.values():
            path.unlink(missing_ok=True)

    def write(self, parts: Iterable[bytes], algorithm: str = OURS) -> tuple[str, int]:
        """A file of the parts; returns digest and size."""
        made = self._incoming.write(parts, algorithm)
        self._made[made.digest] = made.path
        return made.digest, made.size

    def path(self, digest: str) -> Path:
        """A local file; raises as BlobStore does."""
        return self._made.get(digest) or self._blobs.path(digest)
