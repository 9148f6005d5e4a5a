"""A store seen by a run, whose adapters all have names of one kind.

A round made again, to verify it or to replace a damaged blob, then comes out under its old name,
whichever kind new runs use by then.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol


class Store(Protocol):
    """The part of a BlobStore that is needed."""

    def write(self, parts: Iterable[bytes], algorithm: str) -> tuple[str, int]:
        """See BlobStore."""
        ...

    def path(self, digest: str) -> Path:
        """See BlobStore."""
        ...


class NamedBy:
    """Writes blobs that are named by the digests of one algorithm."""

    def __init__(self, blobs: Store, algorithm: str) -> None:
        self._blobs = blobs
        self._algorithm = algorithm

    def write(self, parts: Iterable[bytes]) -> tuple[str, int]:
        """See BlobStore."""
        return self._blobs.write(parts, self._algorithm)

    def path(self, digest: str) -> Path:
        """See BlobStore."""
        return self._blobs.path(digest)
